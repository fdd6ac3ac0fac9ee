// Generalised advantage estimation, for CUDA and the CPU alike: a CUDA thread takes one row, the CPU a block of rows.
// Sums are doubles and go backwards in time, as in the loop of the definition, so both give the bits of that loop.
#pragma once

#include "rays/views.h"

namespace navi {

// A rollout of T decisions of B rows. Arrays are (T, B) in C order; `void` is float, or double where `doubles` is 1.
struct Advantages {
    int64_t steps;              // T
    int64_t rows;               // B
    int64_t doubles;
    double gamma;
    double lambda;
    const void* rewards;
    const void* values;
    const uint8_t* terminated;
    const uint8_t* truncated;
    const void* bootstrap;      // read where an episode is truncated, and in the last step
    const void* rho;            // weight of the temporal difference; null with `trace`: both are 1
    const void* trace;          // weight of the trace
    void* advantages;           // written
};

template <typename Real, bool kWeighted, int kRows>
NAVI_INLINE void gae_rows(const Advantages& g, int64_t first) {
    const int64_t count = first + kRows < g.rows ? kRows : g.rows - first;
    const double gamma = g.gamma, decay = g.gamma * g.lambda;
    double sum[kRows];
    for (int64_t b = 0; b < count; ++b) sum[b] = 0.0;
    for (int64_t t = g.steps - 1; t >= 0; --t) {
        const int64_t at = t * g.rows + first;
        const Real* rewards = static_cast<const Real*>(g.rewards) + at;
        const Real* values = static_cast<const Real*>(g.values) + at;
        const Real* boot = static_cast<const Real*>(g.bootstrap) + at;
        const Real* ahead = t == g.steps - 1 ? boot : values + g.rows;
        const uint8_t* over = g.terminated + at;
        const uint8_t* cut = g.truncated + at;
        const Real* rho = static_cast<const Real*>(g.rho) + (kWeighted ? at : 0);
        const Real* trace = static_cast<const Real*>(g.trace) + (kWeighted ? at : 0);
        Real* out = static_cast<Real*>(g.advantages) + at;
        for (int64_t b = 0; b < count; ++b) {
            const double following = over[b] ? 0.0 : static_cast<double>(cut[b] ? boot[b] : ahead[b]);
            const double difference = rewards[b] + gamma * following - values[b];
            const double later = over[b] || cut[b] ? 0.0 : sum[b];
            sum[b] = kWeighted ? rho[b] * difference + decay * trace[b] * later : difference + decay * later;
            out[b] = static_cast<Real>(sum[b]);
        }
    }
}

// Job `job` takes the rows from `job` * kRows on.
template <int kRows>
NAVI_INLINE void gae_job(const Advantages& g, int64_t job) {
    const int64_t first = job * kRows;
    if (first >= g.rows) return;
    if (g.doubles)
        g.rho ? gae_rows<double, true, kRows>(g, first) : gae_rows<double, false, kRows>(g, first);
    else
        g.rho ? gae_rows<float, true, kRows>(g, first) : gae_rows<float, false, kRows>(g, first);
}

}  // namespace navi
