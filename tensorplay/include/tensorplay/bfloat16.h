// The element type of bfloat16 tensors: the upper half of a float.
//
//   template <typename T>
//   void scale(tp::In<T> x, double by, tp::Out<T> out) {  // dtypes: [bfloat16, float32]
//     for (int64_t i = 0; i < x.numel(); ++i) out[i] = T(by) * x[i];
//   }
//
// It converts to and from float by itself, rounding to nearest, ties to even. Arithmetic goes
// through float and has the types that a built-in type would: with integers and itself it stays
// bfloat16, with float and double it becomes these. Sums belong into a float.
#pragma once

#include <stdint.h>

#include <limits>
#include <type_traits>

namespace tp {

class bfloat16 {
 public:
  bfloat16() = default;
  bfloat16(float value) : bits_(rounded(value)) {}  // NOLINT: implicit, as of a built-in type
  static bfloat16 from_bits(uint16_t bits) {
    bfloat16 made;
    made.bits_ = bits;
    return made;
  }

  uint16_t bits() const { return bits_; }
  operator float() const {  // NOLINT: implicit, as of a built-in type
    const uint32_t whole = static_cast<uint32_t>(bits_) << 16;
    float value;
    __builtin_memcpy(&value, &whole, sizeof value);
    return value;
  }

  bfloat16 operator-() const { return from_bits(bits_ ^ 0x8000u); }
  bfloat16& operator+=(float other) { return *this = float(*this) + other; }
  bfloat16& operator-=(float other) { return *this = float(*this) - other; }
  bfloat16& operator*=(float other) { return *this = float(*this) * other; }
  bfloat16& operator/=(float other) { return *this = float(*this) / other; }

 private:
  static uint16_t rounded(float value) {
    uint32_t whole;
    __builtin_memcpy(&whole, &value, sizeof whole);
    if ((whole & 0x7fffffffu) > 0x7f800000u) return uint16_t(whole >> 16 | 0x40u);  // NaN stays one
    return uint16_t((whole + 0x7fffu + (whole >> 16 & 1u)) >> 16);
  }

  uint16_t bits_;
};

// What an operation with a number gives: a floating-point number keeps its type.
template <class N>
using with_bfloat16 = std::enable_if_t<std::is_arithmetic_v<N>,
                                       std::conditional_t<std::is_floating_point_v<N>, N, bfloat16>>;

#define TP_BFLOAT16_OPERATOR(op)                                                               \
  inline bfloat16 operator op(bfloat16 a, bfloat16 b) { return float(a) op float(b); }         \
  template <class N>                                                                           \
  with_bfloat16<N> operator op(bfloat16 a, N b) {                                              \
    return static_cast<with_bfloat16<N>>(float(a) op b);                                       \
  }                                                                                            \
  template <class N>                                                                           \
  with_bfloat16<N> operator op(N a, bfloat16 b) {                                              \
    return static_cast<with_bfloat16<N>>(a op float(b));                                       \
  }
TP_BFLOAT16_OPERATOR(+)
TP_BFLOAT16_OPERATOR(-)
TP_BFLOAT16_OPERATOR(*)
TP_BFLOAT16_OPERATOR(/)
#undef TP_BFLOAT16_OPERATOR

}  // namespace tp

template <>
class std::numeric_limits<tp::bfloat16> : public std::numeric_limits<float> {
 public:
  static constexpr int digits = 8, digits10 = 2, max_digits10 = 4;
  static tp::bfloat16 min() { return tp::bfloat16::from_bits(0x0080); }
  static tp::bfloat16 max() { return tp::bfloat16::from_bits(0x7f7f); }
  static tp::bfloat16 lowest() { return tp::bfloat16::from_bits(0xff7f); }
  static tp::bfloat16 epsilon() { return tp::bfloat16::from_bits(0x3c00); }
  static tp::bfloat16 infinity() { return tp::bfloat16::from_bits(0x7f80); }
  static tp::bfloat16 quiet_NaN() { return tp::bfloat16::from_bits(0x7fc0); }
  static tp::bfloat16 denorm_min() { return tp::bfloat16::from_bits(0x0001); }
};
