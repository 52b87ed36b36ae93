// Runs a fuzz target on saved inputs, without libFuzzer: replay FILE... Any compiler builds it.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::cerr << argv[i] << std::endl;  // the last one printed is the one at fault
        std::ifstream file(argv[i], std::ios::binary);
        if (!file) return 2;
        const std::vector<std::uint8_t> input{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    return 0;
}
