// Eight lanes of AVX2 with FMA: the vocabulary of packet.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace navi {
namespace {

struct Lanes {
    static constexpr int width = 8;
    using F = __m256;
    using I = __m256i;
    struct M {
        __m256i v;
    };

    static M mask(unsigned bits) {
        const I lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        return M{_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), lane)};
    }
    static unsigned bits(M m) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(m.v))); }

    static F fill(float x) { return _mm256_set1_ps(x); }
    static I fill(int x) { return _mm256_set1_epi32(x); }
    static I load(const int* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(int* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static void store(M m, int* p, I x) { _mm256_maskstore_epi32(p, m.v, x); }
    static void store(M m, float* p, F x) { _mm256_maskstore_ps(p, m.v, x); }
    static F pick(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m.v)); }
    static I pick(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m.v); }

    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F least(F a, F b) { return _mm256_min_ps(a, b); }
    static F greatest(F a, F b) { return _mm256_max_ps(a, b); }
    static F magnitude(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static M equal(F a, F b) { return M{_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))}; }
    static M less(F a, F b) { return M{_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ))}; }
    static M at_least(F a, F b) { return M{_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GE_OQ))}; }

    static I add(I a, I b) { return _mm256_add_epi32(a, b); }
    static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
    static I mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
    static I both(I a, I b) { return _mm256_and_si256(a, b); }
    static I either(I a, I b) { return _mm256_or_si256(a, b); }
    static I least(I a, I b) { return _mm256_min_epi32(a, b); }
    static I greatest(I a, I b) { return _mm256_max_epi32(a, b); }
    static I right(I a, int n) { return _mm256_srli_epi32(a, n); }
    static I left(I a, int n) { return _mm256_slli_epi32(a, n); }
    static I right(I a, I n) { return _mm256_srlv_epi32(a, n); }
    static M equal(I a, I b) { return M{_mm256_cmpeq_epi32(a, b)}; }
    static M less(I a, I b) { return M{_mm256_cmpgt_epi32(b, a)}; }
    static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
    static I to_int(F a) { return _mm256_cvttps_epi32(a); }

    // Lanes 0..7 are those of `a`, 8..15 those of `b`.
    static F of_lane(F a, F b, I lane) {
        const F upper = _mm256_castsi256_ps(_mm256_slli_epi32(lane, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(a, lane), _mm256_permutevar8x32_ps(b, lane), upper);
    }

    static F gather(M m, const float* base, I index) {
        return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), base, index, _mm256_castsi256_ps(m.v), 4);
    }
    // The lower and upper halves of 64-bit words.
    static void gather_halves(M m, const void* base, I index, I& first, I& second) {
        const I zero = _mm256_setzero_si256();
        const auto* pairs = static_cast<const long long*>(base);
        const I low = _mm256_mask_i32gather_epi64(zero, pairs, _mm256_castsi256_si128(index),
                                                  _mm256_cvtepi32_epi64(_mm256_castsi256_si128(m.v)), 8);
        const I high = _mm256_mask_i32gather_epi64(zero, pairs, _mm256_extracti128_si256(index, 1),
                                                   _mm256_cvtepi32_epi64(_mm256_extracti128_si256(m.v, 1)), 8);
        const F a = _mm256_castsi256_ps(low), b = _mm256_castsi256_ps(high);
        first = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xD8);
        second = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)), 0xD8);
    }
    // Four numbers from each of eight rows of `planes`, as four vectors.
    static void rows(const float* planes, const int* row, F& x, F& y, F& z, F& w) {
        F part[4];
        for (int j = 0; j < 4; ++j) {
            const __m128 low = _mm_load_ps(planes + 16 * static_cast<int64_t>(row[j]));
            const __m128 high = _mm_load_ps(planes + 16 * static_cast<int64_t>(row[4 + j]));
            part[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
        }
        const F a = _mm256_unpacklo_ps(part[0], part[1]), b = _mm256_unpackhi_ps(part[0], part[1]);
        const F c = _mm256_unpacklo_ps(part[2], part[3]), d = _mm256_unpackhi_ps(part[2], part[3]);
        x = _mm256_shuffle_ps(a, c, 0x44);
        y = _mm256_shuffle_ps(a, c, 0xEE);
        z = _mm256_shuffle_ps(b, d, 0x44);
        w = _mm256_shuffle_ps(b, d, 0xEE);
    }
    // Time to a plane in double: -(n.o + offset) / n.d. A parallel ray gives no number or an infinite one.
    static F plane_time(F nx, F ny, F nz, F offset, F dx, F dy, F dz, const double o[3]) {
        const __m128 low = half(lower(nx), lower(ny), lower(nz), lower(offset), lower(dx), lower(dy), lower(dz), o);
        const __m128 high = half(upper(nx), upper(ny), upper(nz), upper(offset), upper(dx), upper(dy), upper(dz), o);
        return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }

   private:
    static __m256d lower(F x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
    static __m256d upper(F x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
    static __m128 half(__m256d nx, __m256d ny, __m256d nz, __m256d offset, __m256d dx, __m256d dy, __m256d dz,
                       const double o[3]) {
        const __m256d slope = _mm256_fmadd_pd(nz, dz, _mm256_fmadd_pd(ny, dy, _mm256_mul_pd(nx, dx)));
        __m256d height = _mm256_fmadd_pd(nx, _mm256_set1_pd(o[0]), offset);
        height = _mm256_fmadd_pd(ny, _mm256_set1_pd(o[1]), height);
        height = _mm256_fmadd_pd(nz, _mm256_set1_pd(o[2]), height);
        return _mm256_cvtpd_ps(_mm256_div_pd(_mm256_sub_pd(_mm256_setzero_pd(), height), slope));
    }
};

}  // namespace
}  // namespace navi
