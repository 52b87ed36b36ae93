// Only in wheels, where libstdc++ is linked in: with these the module loads on any glibc from 2.17 on.
extern "C" {
// It asks glibc 2.32 whether the process has one thread only, to save atomic operations. "No" is always right.
extern char __libc_single_threaded __attribute__((visibility("hidden")));
char __libc_single_threaded = 0;

// Headers of glibc 2.38 and later name the function that also reads 0b101, of which nothing here is written.
unsigned long old_strtoul(const char* text, char** end, int base) __asm__("strtoul");
__attribute__((visibility("hidden"))) unsigned long __isoc23_strtoul(const char* text, char** end, int base) {
    return old_strtoul(text, end, base);
}
}
