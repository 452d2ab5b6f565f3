// Rows of a mixture-of-experts layer, by warps that have nothing else to do: into the pool, and sums back.
#pragma once

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/mainloop.cuh"
#include "src/ops/moe/cuda/moe_launch.cuh"
#include "src/ops/moe/cuda/rows.cuh"

namespace overlace::ops::moe {

/// Each warp draws rows. First those that come in: who draws them waits for nobody, so whatever CTAs are resident bring
/// all of them. Then those that go back, each of which awaits the experts up to its last one; their items wait for rows
/// that have come in and for earlier items alone. Who needs a row first gets it first, and of the experts' tiles the
/// first ones are computed first, so both lists are ascending by experts.
template <class Config>
struct MoveRows {
  static constexpr bool kPushes = true, kMoves = true;
  static constexpr int kRowsIn = 4, kRowsOut = 1;                      // that are drawn at once
  static constexpr int kAtOnce = 2;                                    // rows that come in
  static constexpr int kFlightIn = 8, kFlightOut = 4, kCopiesOut = 4;  // loads of a lane that are under way
  static constexpr uint32_t kPauseNs = 200;
  using Element = typename Config::Element;
  const MoeParams* m;

  __device__ void run(const Cta<Config>& cta) const {
    const int32_t rows = *m->flow.num_rows;
    for (int32_t row = draw<kRowsIn>(m->flow.drawn_in); row < rows; row = draw<kRowsIn>(m->flow.drawn_in))
      bring_in(row, min(row + kRowsIn, rows));
    help(cta);
  }
  /// Those who come here bring nothing in, so they wait for who does.
  __device__ void help(const Cta<Config>&) const {
    Deadline deadline{m->gemm.error, m->gemm.timeout_ns};
    const int32_t rows = *m->flow.num_rows;
    int32_t ended = 0;  // experts
    for (int32_t row = draw<kRowsOut>(m->flow.drawn_out); row < rows; row = draw<kRowsOut>(m->flow.drawn_out))
      for (int32_t i = row; i < min(row + kRowsOut, rows); ++i) send_back(i, ended, deadline);
  }

 private:
  template <int kRows>
  __device__ __forceinline__ static int32_t draw(uint32_t* counter) {
    uint32_t first = 0;
    if (lane_of() == 0) first = atomicAdd(counter, static_cast<uint32_t>(kRows));
    return static_cast<int32_t>(__shfl_sync(kAll, first, 0));
  }
  __device__ __forceinline__ Copies copies_of(const RowPlace& place) const {
    const LayerPod& p = m->layer;
    const Entry* const entries = m->flow.entries + int64_t{place.source} * p.max_tokens * p.top_k;
    Copies copies = moe::copies_of(p, entries, place.source, place.token);
    // Where the ranks did not meet, a list may hold places of an earlier call, which had more tokens.
    if (place.source == p.rank && place.token >= m->call.tokens) copies.choices = 0;
    return copies;
  }

  __device__ __forceinline__ void bring_in(int32_t row, int32_t end) const {
    const LayerPod& p = m->layer;
    int32_t expert = m->flow.incoming[row].expert, count = 0;
    for (; row < end; row += kAtOnce) {
      Copies copies[kAtOnce];
      const uint4* from[kAtOnce];
      int32_t experts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const RowPlace place = m->flow.incoming[min(row + i, end - 1)];
        copies[i] = copies_of(place);
        if (row + i >= end) copies[i].choices = 0;
        experts[i] = place.expert;
        if ((copies[i].choices >> lane_of() & 1) != 0) p.row_weights[copies[i].row] = copies[i].weight;
        from[i] = place.source == p.rank ? m->call.rows[0] + place.token * m->call.row_pitches[0]
                                         : at<uint4>(p, place.source, p.rows[0]) + int64_t{place.token} * p.row_units;
      }
      expand_rows<kFlightIn>(p, from, copies, p.pools[0]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row + i >= end) continue;
        if (experts[i] != expert) {
          tell(expert, count);
          expert = experts[i], count = 0;
        }
        ++count;
      }
    }
    tell(expert, count);
  }
  /// Rows that this warp has stored are read by bulk copies of others.
  __device__ __forceinline__ void tell(int32_t expert, int32_t count) const {
    __syncwarp();
    if (lane_of() == 0) {
      ptx::fence_proxy_async();
      __threadfence();
      atomicAdd(m->flow.arrived + expert, static_cast<uint32_t>(count));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void send_back(int32_t row, int32_t& ended, Deadline& deadline) const {
    const LayerPod& p = m->layer;
    const RowPlace place = m->flow.outgoing[row];
    for (; ended <= place.expert; ++ended) {
      if (lane_of() == 0) await_expert(ended, deadline);
      __syncwarp();
    }
    const Copies copies = copies_of(place);
    const bool is_own = place.source == p.rank;
    for (int32_t first = 0; first < p.row_units; first += 32 * kFlightOut) {
      const int32_t unit = first + lane_of();
      float sums[kFlightOut][kPerUnit] = {};
      add_copies<Element, kCopiesOut>(p, copies, unit, sums);
#pragma unroll
      for (int i = 0; i < kFlightOut; ++i)
        if (unit + i * 32 < p.row_units) store(place, is_own, unit + i * 32, sums[i]);
    }
  }
  __device__ __forceinline__ void store(const RowPlace& place, bool is_own, int32_t unit,
                                        const float (&sum)[kPerUnit]) const {
    const LayerPod& p = m->layer;
    if (!is_own) {
      uint4* const sums = at<uint4>(p, place.source, p.sums);
      sums[(p.rank * p.max_tokens + place.token) * p.row_units + unit] = rounded<Element>(sum);
    } else if (p.size == 1) {
      store_result<Element>(m->call, place.token, unit, sum);
    } else {
      auto* const to = reinterpret_cast<float4*>(p.own_sums) + (int64_t{place.token} * p.row_units + unit) * 2;
      to[0] = {sum[0], sum[1], sum[2], sum[3]};
      to[1] = {sum[4], sum[5], sum[6], sum[7]};
    }
  }
  __device__ __forceinline__ void await_expert(int32_t expert, Deadline& deadline) const {
    const auto tiles = static_cast<uint32_t>(base::ceil_div(m->layer.load[expert], kPoolTile));
    wait_until(
        [&] {
          if (ptx::load_acquire_gpu(m->flow.ended + expert) >= tiles * m->ended_tiles) return true;
          __nanosleep(kPauseNs);
          return false;
        },
        deadline);
  }
};

}  // namespace overlace::ops::moe
