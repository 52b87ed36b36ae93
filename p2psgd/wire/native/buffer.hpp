// A Python buffer, held for the length of a call and checked: element type, one contiguous dimension,
// alignment, writable where needed.
//
// The buffer protocol instead of nb::ndarray: it takes memoryviews of shared memory as well as arrays, never
// converts (a converted copy would take the writes and lose them), and its errors can be one sentence. While
// it is held, its memory cannot be resized or freed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace p2psgd {

template <typename T>
struct Element;
template <>
struct Element<float> {
    static constexpr const char *codes = "f", *name = "float32";
};
template <>
struct Element<std::int32_t> {
    static constexpr const char *codes = "il", *name = "int32";
};
template <>
struct Element<std::uint32_t> {
    static constexpr const char *codes = "IL", *name = "uint32";
};
template <>
struct Element<std::uint16_t> {
    static constexpr const char *codes = "H", *name = "uint16";
};
template <>
struct Element<std::uint64_t> {
    static constexpr const char *codes = "LQ", *name = "uint64";
};
template <>
struct Element<std::uint8_t> {
    static constexpr const char *codes = "Bbc", *name = "bytes";
};

// T const: only read. Raises TypeError for another element type, ValueError for another shape or alignment.
template <typename T>
class Buffer {
  public:
    Buffer(nanobind::handle object, const char* what) {
        using Value = std::remove_const_t<T>;
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
            PyErr_Clear();
            throw nanobind::type_error(
                (std::string(what) + " must be a buffer of " + Element<Value>::name).c_str());
        }
        if (const char* fault = fault_of(); fault != nullptr) {
            const bool type = fault == wrong_type;
            PyBuffer_Release(&view_);
            const std::string sentence =
                std::string(what) + " must be " + (type ? std::string("of ") + Element<Value>::name : fault);
            if (type) throw nanobind::type_error(sentence.c_str());
            throw nanobind::value_error(sentence.c_str());
        }
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* data() const noexcept { return static_cast<T*>(view_.buf); }
    std::size_t size() const noexcept { return static_cast<std::size_t>(view_.len) / sizeof(T); }

  private:
    static constexpr const char* wrong_type = "of another type";

    const char* fault_of() const noexcept {
        const char* format = view_.format == nullptr ? "B" : view_.format;
        if (*format == '@' || *format == '=' || *format == '<') ++format;
        const std::string_view codes = Element<std::remove_const_t<T>>::codes;
        if (*format == 0 || format[1] != 0 || codes.find(*format) == codes.npos ||
            view_.itemsize != sizeof(T))
            return wrong_type;
        if (view_.ndim != 1) return "one-dimensional";
        if (view_.shape[0] > 1 && view_.strides[0] != view_.itemsize) return "contiguous";
        if (reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(T) != 0)
            return "aligned to its element size";
        if (!std::is_const_v<T> && view_.readonly != 0) return "writable";
        return nullptr;
    }

    Py_buffer view_;
};

}  // namespace p2psgd
