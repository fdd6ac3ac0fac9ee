// Four lanes by the compiler's vector extension (GCC, Clang): SSE2, NEON or plain code; the vocabulary of rays/tile.h.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "rays/views.h"

namespace navi {
namespace {

struct Lanes4 {
    static constexpr int width = 4;
    typedef float F __attribute__((vector_size(16)));
    typedef int M __attribute__((vector_size(16)));  // -1 or 0 in a lane

    static M mask(unsigned bits) {
        const int b = static_cast<int>(bits);
        const M lane = {1, 2, 4, 8};
        return (M{b, b, b, b} & lane) == lane;
    }
    static unsigned bits(M m) {
#if defined(__SSE2__)
        return static_cast<unsigned>(_mm_movemask_ps((__m128)m));
#else
        const M lane = m & M{1, 2, 4, 8};
        return static_cast<unsigned>(lane[0] | lane[1] | lane[2] | lane[3]);
#endif
    }
    static M both(M a, M b) { return a & b; }

    static F fill(float x) { return F{x, x, x, x}; }
    static F load(const float* p) {
        F x;
        __builtin_memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
    static void store(M m, int* p, int x) {
        M old;
        __builtin_memcpy(&old, p, sizeof old);
        old = (old & ~m) | (M{x, x, x, x} & m);
        __builtin_memcpy(p, &old, sizeof old);
    }
    static void store_least(M m, int* p, int x) {
        M old;
        __builtin_memcpy(&old, p, sizeof old);
        store(m & (M{x, x, x, x} < old), p, x);
    }
    static F pick(M m, F yes, F no) { return (F)(((M)yes & m) | ((M)no & ~m)); }

    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    static F fma(F a, F b, F c) { return a * b + c; }
#if defined(__SSE2__)
    static F least(F a, F b) { return (F)_mm_min_ps((__m128)a, (__m128)b); }
    static F greatest(F a, F b) { return (F)_mm_max_ps((__m128)a, (__m128)b); }
#else
    static F least(F a, F b) { return pick(a < b, a, b); }
    static F greatest(F a, F b) { return pick(a > b, a, b); }
#endif
    static F magnitude(F a) { return (F)((M)a & ~sign_bits()); }
    static F flip(F a, F sign) { return (F)((M)a ^ ((M)sign & sign_bits())); }
    // The power of two nearest below 1.41 y, as a number; y over it is left in `rest`.
    static F exponent(F y, F& rest) {
        const M e = ((M)y - kRootHalf) >> 23;
        rest = (F)((M)y - e * (1 << 23));
        return __builtin_convertvector(e, F);
    }
    static F number(const int* p) {
        M x;
        __builtin_memcpy(&x, p, sizeof x);
        return __builtin_convertvector(x, F);
    }
    static float lowest(F a) { return navi::least(navi::least(a[0], a[1]), navi::least(a[2], a[3])); }
    static float highest(F a) { return navi::greatest(navi::greatest(a[0], a[1]), navi::greatest(a[2], a[3])); }
    static M less(F a, F b) { return a < b; }
    static M at_most(F a, F b) { return a <= b; }

   private:
    static M sign_bits() { return (M)fill(-0.0f); }
};

}  // namespace
}  // namespace navi
