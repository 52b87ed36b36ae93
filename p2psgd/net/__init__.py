"""The asyncio shells around the pure core: connections that carry frames, and the mesh of one link per
peer.
"""
