// Only in wheels, where libstdc++ is linked in: it asks glibc 2.32 whether the process has one thread only, to save
// atomic operations. "No" is always right, and with this answer the module loads on any glibc from 2.17 on.
extern "C" {
extern char __libc_single_threaded __attribute__((visibility("hidden")));
char __libc_single_threaded = 0;
}
