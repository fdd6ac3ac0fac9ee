// Sixteen lanes of AVX-512: the vocabulary of rays/tile.h.
#pragma once

#include <immintrin.h>

#include "rays/views.h"

namespace navi {
namespace {

struct Lanes16 {
    static constexpr int width = 16;
    using F = __m512;
    using M = __mmask16;

    static M mask(unsigned bits) { return static_cast<M>(bits); }
    static unsigned bits(M m) { return m; }
    static M both(M a, M b) { return static_cast<M>(a & b); }

    static F fill(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static void store(M m, int* p, int x) { _mm512_mask_storeu_epi32(p, m, _mm512_set1_epi32(x)); }
    static void store_least(M m, int* p, int x) {
        _mm512_mask_storeu_epi32(p, m, _mm512_min_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(x)));
    }
    static F pick(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }

    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F least(F a, F b) { return _mm512_min_ps(a, b); }
    static F greatest(F a, F b) { return _mm512_max_ps(a, b); }
    static F magnitude(F a) { return _mm512_abs_ps(a); }
    static F flip(F a, F sign) { return _mm512_xor_ps(a, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f))); }
    // The power of two nearest below 1.41 y, as a number; y over it is left in `rest`.
    static F exponent(F y, F& rest) {
        const __m512i bits = _mm512_castps_si512(y);
        const __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(kRootHalf)), 23);
        rest = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
        return _mm512_cvtepi32_ps(e);
    }
    static F number(const int* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
    static float lowest(F a) { return _mm512_reduce_min_ps(a); }
    static float highest(F a) { return _mm512_reduce_max_ps(a); }
    static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static M at_most(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
};

}  // namespace
}  // namespace navi
