// Sixteen lanes of AVX-512: the vocabulary of packet.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace navi {
namespace {

struct Lanes {
    static constexpr int width = 16;
    using F = __m512;
    using I = __m512i;
    using M = __mmask16;

    static M mask(unsigned bits) { return static_cast<M>(bits); }
    static unsigned bits(M m) { return m; }

    static F fill(float x) { return _mm512_set1_ps(x); }
    static I fill(int x) { return _mm512_set1_epi32(x); }
    static I load(const int* p) { return _mm512_loadu_si512(p); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(int* p, I x) { _mm512_storeu_si512(p, x); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static void store(M m, int* p, I x) { _mm512_mask_storeu_epi32(p, m, x); }
    static void store(M m, float* p, F x) { _mm512_mask_storeu_ps(p, m, x); }
    static F pick(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
    static I pick(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }

    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F least(F a, F b) { return _mm512_min_ps(a, b); }
    static F greatest(F a, F b) { return _mm512_max_ps(a, b); }
    static F magnitude(F a) { return _mm512_abs_ps(a); }
    static M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
    static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static M at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

    static I add(I a, I b) { return _mm512_add_epi32(a, b); }
    static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
    static I mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
    static I both(I a, I b) { return _mm512_and_si512(a, b); }
    static I either(I a, I b) { return _mm512_or_si512(a, b); }
    static I least(I a, I b) { return _mm512_min_epi32(a, b); }
    static I greatest(I a, I b) { return _mm512_max_epi32(a, b); }
    static I right(I a, int n) { return _mm512_srli_epi32(a, n); }
    static I left(I a, int n) { return _mm512_slli_epi32(a, n); }
    static I right(I a, I n) { return _mm512_srlv_epi32(a, n); }
    static M equal(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }
    static M less(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
    static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
    static I to_int(F a) { return _mm512_cvttps_epi32(a); }

    // Lanes 0..15 are those of `a`, 16..31 those of `b`.
    static F of_lane(F a, F b, I lane) { return _mm512_permutex2var_ps(a, lane, b); }

    static F gather(M m, const float* base, I index) {
        return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, index, base, 4);
    }
    // The lower and upper halves of 64-bit words.
    static void gather_halves(M m, const void* base, I index, I& first, I& second) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i low = _mm512_mask_i32gather_epi64(zero, static_cast<__mmask8>(m), _mm512_castsi512_si256(index),
                                                        base, 8);
        const __m512i high = _mm512_mask_i32gather_epi64(zero, static_cast<__mmask8>(m >> 8),
                                                         _mm512_extracti64x4_epi64(index, 1), base, 8);
        const I even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        first = _mm512_permutex2var_epi32(low, even, high);
        second = _mm512_permutex2var_epi32(low, add(even, fill(1)), high);
    }
    // Four numbers from each of sixteen rows of `planes`, as four vectors.
    static void rows(const float* planes, const int* row, F& x, F& y, F& z, F& w) {
        F part[4];
        for (int j = 0; j < 4; ++j) {
            part[j] = _mm512_castps128_ps512(_mm_load_ps(planes + 16 * static_cast<int64_t>(row[j])));
            part[j] = quarter<0x00F0>(part[j], planes, row[4 + j]);
            part[j] = quarter<0x0F00>(part[j], planes, row[8 + j]);
            part[j] = quarter<0xF000>(part[j], planes, row[12 + j]);
        }
        const F a = _mm512_unpacklo_ps(part[0], part[1]), b = _mm512_unpackhi_ps(part[0], part[1]);
        const F c = _mm512_unpacklo_ps(part[2], part[3]), d = _mm512_unpackhi_ps(part[2], part[3]);
        x = _mm512_shuffle_ps(a, c, 0x44);
        y = _mm512_shuffle_ps(a, c, 0xEE);
        z = _mm512_shuffle_ps(b, d, 0x44);
        w = _mm512_shuffle_ps(b, d, 0xEE);
    }
    // Time to a plane in double: -(n.o + offset) / n.d. A parallel ray gives no number or an infinite one.
    static F plane_time(F nx, F ny, F nz, F offset, F dx, F dy, F dz, const double o[3]) {
        const __m256 low = half(lower(nx), lower(ny), lower(nz), lower(offset), lower(dx), lower(dy), lower(dz), o);
        const __m256 high = half(upper(nx), upper(ny), upper(nz), upper(offset), upper(dx), upper(dy), upper(dz), o);
        return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    }

   private:
    template <int M4>
    static F quarter(F x, const float* planes, int row) {
        return _mm512_mask_broadcast_f32x4(x, M4, _mm_load_ps(planes + 16 * static_cast<int64_t>(row)));
    }
    static __m512d lower(F x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
    static __m512d upper(F x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
    static __m256 half(__m512d nx, __m512d ny, __m512d nz, __m512d offset, __m512d dx, __m512d dy, __m512d dz,
                       const double o[3]) {
        const __m512d slope = _mm512_fmadd_pd(nz, dz, _mm512_fmadd_pd(ny, dy, _mm512_mul_pd(nx, dx)));
        __m512d height = _mm512_fmadd_pd(nx, _mm512_set1_pd(o[0]), offset);
        height = _mm512_fmadd_pd(ny, _mm512_set1_pd(o[1]), height);
        height = _mm512_fmadd_pd(nz, _mm512_set1_pd(o[2]), height);
        return _mm512_cvtpd_ps(_mm512_div_pd(_mm512_sub_pd(_mm512_setzero_pd(), height), slope));
    }
};

}  // namespace
}  // namespace navi
