// Elementary functions on vectors; read after vector.h.
//
// Polynomials interpolate at the nodes of Chebyshev, computed with 60 digits; the number beside each
// is their largest error. Arguments are reduced as Cody and Waite do, with ln 2 in two parts.
// Distances from NumPy's values, in units of the last place, of those written out here: in float64 at
// most 2; in float32 1 for sine and cosine, 2 for expm1, 3 for exp and sigmoid, 4 for log and tanh,
// which NumPy's own errors are part of. NaN, infinities, signed zeros and subnormal numbers are as in NumPy.
// The other functions are those of glibc's vector library where it is there, else of the C library,
// one element after the other.
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <features.h>
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 35) && VECTOR_BYTES >= 32
#define TP_LIBMVEC 1
#endif
#endif
#endif

namespace tp {

// --- exponentials ---------------------------------------------------------------------------------

// x = n ln 2 + r with |r| <= ln 2 / 2; returns n, and e^r - 1 in `p`.
INLINE f32 exp_parts(f32 x, f32& p) {
  f32 n = round_even(x * 1.44269504f);
  f32 r = fma(n, splat<f32>(-0.693145751953125f), x);
  r = fma(n, splat<f32>(-1.42860682e-6f), r);
  // (e^r - 1 - r) / r^2, error 6.4e-8
  f32 q = splat<f32>(0.00139261836f);
  q = fma(q, r, splat<f32>(0.00836317905f));
  q = fma(q, r, splat<f32>(0.0416665546f));
  q = fma(q, r, splat<f32>(0.16666577f));
  q = fma(q, r, splat<f32>(0.5f));
  p = fma(q, r * r, r);
  return n;
}
INLINE f64 exp_parts(f64 x, f64& p) {
  f64 n = round_even(x * 1.4426950408889634);
  f64 r = fma(n, splat<f64>(-0.6931471804855391), x);
  r = fma(n, splat<f64>(-7.4406171100123967e-11), r);
  // (e^r - 1 - r) / r^2, error 1.1e-16
  f64 q = splat<f64>(2.51003854955103191e-8);
  q = fma(q, r, splat<f64>(2.76200884454097482e-7));
  q = fma(q, r, splat<f64>(2.75572684599970648e-6));
  q = fma(q, r, splat<f64>(2.48015212959543751e-5));
  q = fma(q, r, splat<f64>(1.98412698630536169e-4));
  q = fma(q, r, splat<f64>(1.38888889172137169e-3));
  q = fma(q, r, splat<f64>(8.33333333333006183e-3));
  q = fma(q, r, splat<f64>(4.16666666666241279e-2));
  q = fma(q, r, splat<f64>(0.166666666666666675));
  q = fma(q, r, splat<f64>(0.5));
  p = fma(q, r * r, r);
  return n;
}

// 2^n for whole numbers n whose power is a normal number.
INLINE f32 power_of_two(f32 n) {
#if TP_F32 == 512
  return __builtin_ia32_scalefps512_mask(splat<f32>(1), n, n, -1, 4);
#else
  return bits_as<f32>((cast<i32>(n) + 127) << 23);
#endif
}
INLINE f64 power_of_two(f64 n) {
#if TP_F64 == 512
  return __builtin_ia32_scalefpd512_mask(splat<f64>(1), n, n, -1, 4);
#else
  return bits_as<f64>((cast<i64>(n) + 1023) << 52);
#endif
}

// y 2^n, rounded once, for |n| below twice the largest exponent.
template <class V>
INLINE V scale_twice(V y, V n) {
  V half = floor(n * 0.5f);
  return y * power_of_two(half) * power_of_two(n - half);
}
INLINE f32 scale(f32 y, f32 n) {
#if TP_F32 == 512
  return __builtin_ia32_scalefps512_mask(y, n, y, -1, 4);
#else
  return scale_twice(y, n);
#endif
}
INLINE f64 scale(f64 y, f64 n) {
#if TP_F64 == 512
  return __builtin_ia32_scalefpd512_mask(y, n, y, -1, 4);
#else
  return scale_twice(y, n);
#endif
}

// Limits that leave NaN alone.
template <class V>
INLINE V at_least(V x, typename Of<V>::element low) { return x < low ? splat<V>(low) : x; }
template <class V>
INLINE V at_most(V x, typename Of<V>::element high) { return x > high ? splat<V>(high) : x; }
#if TP_F32 == 512  // one instruction, which gives the second operand where one is NaN
INLINE f32 at_least(f32 x, float low) {
  return __builtin_ia32_maxps512_mask(splat<f32>(low), x, x, -1, 4);
}
INLINE f32 at_most(f32 x, float high) {
  return __builtin_ia32_minps512_mask(splat<f32>(high), x, x, -1, 4);
}
#endif
template <class V>
INLINE V between(V x, typename Of<V>::element low, typename Of<V>::element high) {
  return at_most(at_least(x, low), high);
}

INLINE f32 exp(f32 x) {
  f32 p;
  f32 n = exp_parts(between(x, -104.f, 89.f), p);
  return scale(p + 1.f, n);
}
INLINE f64 exp(f64 x) {
  f64 p;
  f64 n = exp_parts(between(x, -746., 710.), p);
  return scale(p + 1., n);
}

// 2 (2^(n-1) p + (2^(n-1) - 1/2)): no power overflows, and for n = 0 nothing is lost.
INLINE f32 expm1(f32 x) {
  f32 p;
  f32 n = exp_parts(between(x, -20.f, 89.f), p);
  f32 s = power_of_two(n - 1.f);
  return select(is(x == 0), x, 2.f * fma(s, p, s - 0.5f));
}
INLINE f64 expm1(f64 x) {
  f64 p;
  f64 n = exp_parts(between(x, -40., 710.), p);
  f64 s = power_of_two(n - 1.);
  return select(is(x == 0), x, 2. * fma(s, p, s - 0.5));
}

// With t = e^(-2|x|) - 1: tanh |x| = -t / (2 + t).
INLINE f32 tanh(f32 x) {
  f32 y = at_least(absolute(x) * -2.88539008f, -29.f);
  f32 n = round_even(y), r = y - n;
  // (2^r - 1) / r, error 7.8e-9
  f32 q = splat<f32>(1.54531629e-4f);
  q = fma(q, r, splat<f32>(1.33908634e-3f));
  q = fma(q, r, splat<f32>(9.61808256e-3f));
  q = fma(q, r, splat<f32>(5.55035711e-2f));
  q = fma(q, r, splat<f32>(0.240226508f));
  q = fma(q, r, splat<f32>(0.693147188f));
  f32 s = power_of_two(n);
  f32 t = fma(s, q * r, s - 1.f);
  return copysign(t / (t + 2.f), x);
}

// e^-|x| cannot overflow; both branches share it.
template <class V>
INLINE V sigmoid(V x) {
  V e = exp(-absolute(x));
  return (x >= 0 ? splat<V>(1) : e) / (e + 1);
}

// --- logarithms -----------------------------------------------------------------------------------

// x = 2^e (1 + f) with 1 + f between the roots of 1/2 and 2, for positive finite x.
INLINE f32 log_parts(f32 x, f32& f) {
  mask small = is(x < 1.17549435e-38f);
  x = select(small, x * 8388608.f, x);
  i32 b = bits_as<i32>(x) - 0x3f3504f3;
  f32 e = cast<f32>(b >> 23);
  f = bits_as<f32>((b & 0x7fffff) + 0x3f3504f3) - 1.f;
  return select(small, e - 23.f, e);
}
INLINE f64 log_parts(f64 x, f64& f) {
  mask small = is(x < 2.2250738585072014e-308);
  x = select(small, x * 4503599627370496., x);
  i64 b = bits_as<i64>(x) - 0x3fe6a09e667f3bcd;
  f64 e = cast<f64>(b >> 52);
  f = bits_as<f64>((b & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1.;
  return select(small, e - 52., e);
}
// The logarithm of what is no positive finite number.
template <class V>
INLINE V log_special(V x, V y) {
  V infinite = splat<V>(static_cast<typename Of<V>::element>(__builtin_inf()));
  y = x == 0 ? -infinite : y;
  y = x < 0 ? infinite - infinite : y;
  return (x == infinite) | (x != x) ? x : y;
}
INLINE f32 log(f32 x) {
  f32 f;
  f32 e = log_parts(x, f);
  // (log(1 + f) - f + f^2 / 2) / f^3, error 2.9e-8
  f32 p = splat<f32>(0.0697161147f);
  p = fma(p, f, splat<f32>(-0.114797338f));
  p = fma(p, f, splat<f32>(0.1168542f));
  p = fma(p, f, splat<f32>(-0.124256873f));
  p = fma(p, f, splat<f32>(0.142490576f));
  p = fma(p, f, splat<f32>(-0.166678023f));
  p = fma(p, f, splat<f32>(0.200007157f));
  p = fma(p, f, splat<f32>(-0.24999997f));
  p = fma(p, f, splat<f32>(0.333333312f));
  f32 z = f * f;
  f32 tail = fma(e, splat<f32>(1.42860682e-6f), fma(p * f, z, z * -0.5f));
  return log_special(x, fma(e, splat<f32>(0.693145751953125f), f + tail));
}
INLINE f64 log(f64 x) {
  f64 f;
  f64 e = log_parts(x, f);
  f64 s = f / (f + 2.), z = s * s;
  // (log(1 + f) - 2 s) / s^3 in s^2 = (f / (2 + f))^2, error 2.1e-18
  f64 p = splat<f64>(0.130866261478401021);
  p = fma(p, z, splat<f64>(0.132687731386568852));
  p = fma(p, z, splat<f64>(0.153862397028146582));
  p = fma(p, z, splat<f64>(0.181817956401329063));
  p = fma(p, z, splat<f64>(0.222222223917139174));
  p = fma(p, z, splat<f64>(0.285714285708036118));
  p = fma(p, z, splat<f64>(0.40000000000000877));
  p = fma(p, z, splat<f64>(0.666666666666666665));
  // 2 s = f - f^2/2 + s f^2/2: the largest terms are exact or nearly so.
  f64 half = f * f * 0.5;
  f64 tail = fma(s, fma(p, z, half), e * 7.4406171100123967e-11);
  return log_special(x, fma(e, splat<f64>(0.6931471804855391), f - (half - tail)));
}

// --- functions of the system ----------------------------------------------------------------------

// The names say the instruction set (d: AVX2, e: AVX-512), the lanes and the arguments.
#if TP_LIBMVEC && LANES == 16
#define TP_NAME_F32(name, v) _ZGVeN16##v##_##name##f
#elif TP_LIBMVEC && LANES == 8
#define TP_NAME_F32(name, v) _ZGVdN8##v##_##name##f
#endif
#if TP_LIBMVEC && WIDEST == 8 && LANES == 8
#define TP_NAME_F64(name, v) _ZGVeN8##v##_##name
#elif TP_LIBMVEC && WIDEST == 8 && LANES == 4
#define TP_NAME_F64(name, v) _ZGVdN4##v##_##name
#endif

#ifdef TP_NAME_F32
#define TP_F32_1(name)                                    \
  extern "C" f32 TP_NAME_F32(name, v)(f32);               \
  INLINE f32 name(f32 x) { return TP_NAME_F32(name, v)(x); }
#define TP_F32_2(name)                                    \
  extern "C" f32 TP_NAME_F32(name, vv)(f32, f32);         \
  INLINE f32 name(f32 x, f32 y) { return TP_NAME_F32(name, vv)(x, y); }
#else
#define TP_F32_1(name) \
  INLINE f32 name(f32 x) { TP_LANEWISE(r, f32, __builtin_##name##f(x[i])) return r; }
#define TP_F32_2(name) \
  INLINE f32 name(f32 x, f32 y) { TP_LANEWISE(r, f32, __builtin_##name##f(x[i], y[i])) return r; }
#endif
// In float64 one function after the other is up to 3 units of the last place from NumPy's there:
// those are the C library's.
#define TP_F64_EACH(name) \
  INLINE f64 name(f64 x) { TP_LANEWISE(r, f64, __builtin_##name(x[i])) return r; }
#define TP_F64_EACH2(name) \
  INLINE f64 name(f64 x, f64 y) { TP_LANEWISE(r, f64, __builtin_##name(x[i], y[i])) return r; }
#ifdef TP_NAME_F64
#define TP_F64_1(name)                                    \
  extern "C" f64 TP_NAME_F64(name, v)(f64);               \
  INLINE f64 name(f64 x) { return TP_NAME_F64(name, v)(x); }
#define TP_F64_2(name)                                    \
  extern "C" f64 TP_NAME_F64(name, vv)(f64, f64);         \
  INLINE f64 name(f64 x, f64 y) { return TP_NAME_F64(name, vv)(x, y); }
#else
#define TP_F64_1 TP_F64_EACH
#define TP_F64_2 TP_F64_EACH2
#endif
// NumPy has these in AVX-512 too, and the C library's elsewhere.
#if VECTOR_BYTES == 64
#define TP_F64_AS_NUMPY TP_F64_1
#else
#define TP_F64_AS_NUMPY TP_F64_EACH
#endif

TP_F32_1(exp2) TP_F64_1(exp2)
TP_F32_1(log2) TP_F64_1(log2)
TP_F32_1(log10) TP_F64_1(log10)
TP_F32_1(log1p) TP_F64_1(log1p)
TP_F32_1(tan) TP_F64_EACH(tan)
TP_F32_1(asin) TP_F64_EACH(asin)
TP_F32_1(acos) TP_F64_1(acos)
TP_F32_1(atan) TP_F64_EACH(atan)
TP_F32_1(sinh) TP_F64_AS_NUMPY(sinh)
TP_F32_1(cosh) TP_F64_1(cosh)
TP_F64_1(tanh)
TP_F32_1(asinh) TP_F64_AS_NUMPY(asinh)
TP_F32_1(acosh) TP_F64_AS_NUMPY(acosh)
TP_F32_1(atanh) TP_F64_AS_NUMPY(atanh)
TP_F32_1(erf) TP_F64_EACH(erf)
TP_F32_1(erfc) TP_F64_EACH(erfc)
TP_F32_2(pow) TP_F64_2(pow)
TP_F32_2(atan2) TP_F64_EACH2(atan2)
TP_F32_2(hypot) TP_F64_2(hypot)

// --- sine and cosine ------------------------------------------------------------------------------

// The sine of x + turns pi / 2. Below 2^20 the quarter turns are taken off in three parts of pi / 2.
INLINE f64 sine(f64 x, int64_t turns) {
  f64 n = round_even(x * 0.6366197723675814);
  f64 r = fma(n, splat<f64>(-1.5707963267948966), x);
  r = fma(n, splat<f64>(-6.123233995736766e-17), r);
  r = fma(n, splat<f64>(1.4973849048591698e-33), r);
  f64 z = r * r;
  // (sin r - r) / r^3 and (cos r - 1 + r^2 / 2) / r^4, errors 1.2e-20 and 6.5e-22
  f64 s = splat<f64>(-7.58657658817107246e-13);
  s = fma(s, z, splat<f64>(1.60585295722678764e-10));
  s = fma(s, z, splat<f64>(-2.50521062195218942e-8));
  s = fma(s, z, splat<f64>(2.75573192193019187e-6));
  s = fma(s, z, splat<f64>(-1.9841269841265017e-4));
  s = fma(s, z, splat<f64>(8.33333333333333147e-3));
  s = fma(s, z, splat<f64>(-0.166666666666666667));
  s = fma(s * z, r, r);
  f64 c = splat<f64>(4.74580488976067417e-14);
  c = fma(c, z, splat<f64>(-1.14704597496756061e-11));
  c = fma(c, z, splat<f64>(2.08767557838940384e-9));
  c = fma(c, z, splat<f64>(-2.75573192213820156e-7));
  c = fma(c, z, splat<f64>(2.48015873015846198e-5));
  c = fma(c, z, splat<f64>(-1.38888888888888879e-3));
  c = fma(c, z, splat<f64>(4.16666666666666667e-2));
  // 1 - r^2/2 with what its rounding loses
  f64 h = z * 0.5, w = 1. - h;
  c = w + fma(z * z, c, (1. - w) - h);
  i64 q = cast<i64>(n) + turns;
  f64 y = select(is((q & 1) != 0), c, s);
  return bits_as<f64>(bits_as<i64>(y) ^ ((q & 2) << 62));
}
// The same in float32, below 2^16.
INLINE f32 sine(f32 x, int32_t turns) {
  f32 n = round_even(x * 0.636619772f);
  f32 r = fma(n, splat<f32>(-1.57079637f), x);
  r = fma(n, splat<f32>(4.37113883e-8f), r);
  r = fma(n, splat<f32>(1.71512451e-15f), r);
  f32 z = r * r;
  // as above, errors 2.1e-8 and 2.1e-9
  f32 s = fma(splat<f32>(-1.95873871e-4f), z, splat<f32>(8.33274594e-3f));
  s = fma(s, z, splat<f32>(-0.166666647f));
  s = fma(s * z, r, r);
  f32 c = fma(splat<f32>(2.45474372e-5f), z, splat<f32>(-1.38883007e-3f));
  c = fma(c, z, splat<f32>(4.16666646e-2f));
  c = fma(z * z, c, fma(z, splat<f32>(-0.5f), splat<f32>(1.f)));
  i32 q = cast<i32>(n) + turns;
  f32 y = select(is((q & 1) != 0), c, s);
  return bits_as<f32>(bits_as<i32>(y) ^ ((q & 2) << 30));
}
INLINE bool is_large(f32 x) { return any_across(is(absolute(x) > 65536.f)); }
INLINE f32 sin(f32 x) {
  if (__builtin_expect(is_large(x), 0)) {
    TP_LANEWISE(r, f32, __builtin_sinf(x[i])) return r;
  }
  return select(is(x == 0), x, sine(x, 0));  // the zero that x is
}
INLINE f32 cos(f32 x) {
  if (__builtin_expect(is_large(x), 0)) {
    TP_LANEWISE(r, f32, __builtin_cosf(x[i])) return r;
  }
  return sine(x, 1);
}
INLINE bool is_large(f64 x) { return any_across(is(absolute(x) > 1048576.)); }
INLINE f64 sin(f64 x) {
  if (__builtin_expect(is_large(x), 0)) {
    TP_LANEWISE(r, f64, __builtin_sin(x[i])) return r;
  }
  return select(is(x == 0), x, sine(x, 0));  // the zero that x is
}
INLINE f64 cos(f64 x) {
  if (__builtin_expect(is_large(x), 0)) {
    TP_LANEWISE(r, f64, __builtin_cos(x[i])) return r;
  }
  return sine(x, 1);
}

}  // namespace tp
