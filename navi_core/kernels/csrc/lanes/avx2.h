// Eight lanes of AVX2 with FMA: the vocabulary of rays/tile.h.
#pragma once

#include <immintrin.h>

#include "rays/views.h"

namespace navi {
namespace {

struct Lanes8 {
    static constexpr int width = 8;
    using F = __m256;
    using M = __m256;  // all bits of a lane, or none

    static M mask(unsigned bits) {
        const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
        return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
    }
    static unsigned bits(M m) { return static_cast<unsigned>(_mm256_movemask_ps(m)); }
    static M both(M a, M b) { return _mm256_and_ps(a, b); }

    static F fill(float x) { return _mm256_set1_ps(x); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static void store(M m, int* p, int x) { _mm256_maskstore_epi32(p, _mm256_castps_si256(m), _mm256_set1_epi32(x)); }
    static void store_least(M m, int* p, int x) {
        const __m256i old = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        _mm256_maskstore_epi32(p, _mm256_castps_si256(m), _mm256_min_epi32(old, _mm256_set1_epi32(x)));
    }
    static F pick(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }

    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F least(F a, F b) { return _mm256_min_ps(a, b); }
    static F greatest(F a, F b) { return _mm256_max_ps(a, b); }
    static F magnitude(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static F flip(F a, F sign) { return _mm256_xor_ps(a, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f))); }
    // The power of two nearest below 1.41 y, as a number; y over it is left in `rest`.
    static F exponent(F y, F& rest) {
        const __m256i bits = _mm256_castps_si256(y);
        const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(kRootHalf)), 23);
        rest = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
        return _mm256_cvtepi32_ps(e);
    }
    static F number(const int* p) {
        return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static float lowest(F a) {
        const __m128 h = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        const __m128 q = _mm_min_ps(h, _mm_movehl_ps(h, h));
        return _mm_cvtss_f32(_mm_min_ss(q, _mm_movehdup_ps(q)));
    }
    static float highest(F a) {
        const __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        const __m128 q = _mm_max_ps(h, _mm_movehl_ps(h, h));
        return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
    }
    static M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
    static M at_most(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
};

}  // namespace
}  // namespace navi
