// The rays of a row in bundles of tiles of neighbouring rays: laid out once, walked from every origin.
#pragma once

#include <cstring>
#include <vector>

#include "rays/views.h"

namespace navi {

// Rays of an azimuth where the directions are a panorama, azimuth by azimuth: their heights come again and again.
// 0 where they do not. A wrong guess would cost time, never a wrong answer.
static int64_t elevations_of(const float* directions, int64_t rays) {
    int64_t period = 1;
    while (period < rays && directions[3 * period + 1] != directions[1]) ++period;
    if (rays % period != 0 || period == rays) return 0;
    for (int64_t r = period; r < rays; ++r)
        if (directions[3 * r + 1] != directions[3 * (r - period) + 1]) return 0;
    return period;
}

class Plan {
   public:
    // Take the rays of a row into bundles: all of a panorama in tiles of azimuths and elevations, or any rays in their
    // order. The same rays as before cost a comparison.
    void take(const float* directions, int64_t rays, int lanes) {
        const size_t numbers = static_cast<size_t>(3 * rays);
        const bool same = rays == rays_ && lanes == lanes_ && bundles_ == end_ - first_ &&
                          std::memcmp(taken_.data(), directions, numbers * sizeof(float)) == 0;
        if (same) return;
        shape(directions, rays, lanes);
        taken_.assign(directions, directions + numbers);
        fill(directions, 0, bundles_);
    }

    // Only the bundles [first, end).
    void take(const float* directions, int64_t rays, int lanes, int64_t first, int64_t end) {
        shape(directions, rays, lanes);
        fill(directions, least(first, bundles_), least(end, bundles_));
    }

    // The layout of the bundles that were taken, valid until others are.
    Layout layout() const {
        const bool even = elevations_ && elevations_ % high_ == 0 && columns_ % wide_ == 0;
        const int run = !even ? 1 : high_ % 4 == 0 ? 4 : high_ % 2 == 0 ? 2 : 1;
        return Layout{end_ - first_, tiles_.data(), ray_.data(), slopes_.data(), nullptr, run, wide_ * elevations_};
    }

   private:
    void shape(const float* directions, int64_t rays, int lanes) {
        rays_ = rays;
        lanes_ = lanes;
        bundles_ = (rays + lanes * lanes - 1) / (lanes * lanes);
        elevations_ = elevations_of(directions, rays);
        if (elevations_ == 0) return;
        columns_ = rays / elevations_;
        high_ = rows_of(1, 1);
        wide_ = lanes / high_;
        down_ = rows_of(wide_, high_);
        across_ = lanes / down_;
        bands_ = (elevations_ + down_ * high_ - 1) / (down_ * high_);
        bundles_ = (columns_ + across_ * wide_ - 1) / (across_ * wide_) * bands_;
    }

    void fill(const float* directions, int64_t first, int64_t end) {
        first_ = first;
        end_ = end;
        tiles_.assign(1, 0);
        ray_.clear();
        for (int64_t bundle = first; bundle < end; ++bundle) {
            for (int t = 0; t < lanes_; ++t) elevations_ ? add_grid_tile(bundle, t) : add_tile(bundle * lanes_ + t);
            tiles_.push_back(static_cast<int32_t>(ray_.size()) / lanes_);
        }
        slopes_.resize(3 * ray_.size());
        float* to = slopes_.data();
        for (size_t tile = 0; tile < ray_.size(); tile += static_cast<size_t>(lanes_))
            for (int a = 0; a < 3; ++a)
                for (int l = 0; l < lanes_; ++l) *to++ = directions[3 * int64_t{ray_[tile + static_cast<size_t>(l)]} + a];
    }

    // Into how many rows to lay parts of the panorama, as wide as high, near enough: an azimuth step is 2 pi / columns,
    // an elevation step pi / elevations.
    int rows_of(int64_t wide, int64_t high) const {
        int best = 1;
        double least_extent = 0.0;
        for (int rows = 1; rows <= lanes_; rows *= 2) {
            const double extent = 2.0 * static_cast<double>(lanes_ / rows * wide) / static_cast<double>(columns_) +
                                  static_cast<double>(rows * high) / static_cast<double>(elevations_);
            if (rows > 1 && extent >= least_extent) continue;
            least_extent = extent;
            best = rows;
        }
        return best;
    }

    void add_grid_tile(int64_t bundle, int t) {
        const int64_t azimuth = (bundle / bands_ * across_ + t / down_) * wide_;
        const int64_t elevation = (bundle % bands_ * down_ + t % down_) * high_;
        if (azimuth >= columns_ || elevation >= elevations_) return;
        // Beyond the edge of the grid its last rays are taken again.
        for (int64_t a = azimuth; a < azimuth + wide_; ++a)
            for (int64_t e = elevation; e < elevation + high_; ++e)
                add(least(a, columns_ - 1) * elevations_ + least(e, elevations_ - 1));
    }
    void add_tile(int64_t tile) {
        if (tile * lanes_ >= rays_) return;
        for (int64_t l = 0; l < lanes_; ++l) add(least(tile * lanes_ + l, rays_ - 1));
    }
    void add(int64_t ray) { ray_.push_back(static_cast<int32_t>(ray)); }

    int64_t rays_ = 0, bundles_ = 0, first_ = 0, end_ = 0;
    int lanes_ = 0;
    int64_t elevations_ = 0, columns_ = 0, bands_ = 0;  // of the panorama; no elevations: the rays lie on no grid
    int64_t high_ = 1, wide_ = 1;                       // elevations and azimuths of a tile
    int64_t down_ = 1, across_ = 1;                     // tiles of a bundle
    std::vector<float> taken_, slopes_;
    std::vector<int32_t> tiles_, ray_;
};

}  // namespace navi
