#include <algorithm>
#include <cstring>

#include "src/gemm_core/host.cuh"
#include "src/ops/fused/exchange_host.cuh"
#include "src/ops/fused/one_shot_launch.cuh"
#include "src/spec/fused_pod.h"

namespace overlace::ops::fused {
namespace {

base::Status validate(const Instance& instance, const OneShotArgs& g) {
  const OneShotState& state = g.state;
  if (state.channel == nullptr || state.calls == nullptr || state.places == nullptr || g.error == nullptr)
    return base::invalid_argument("fused kernel: channel, calls, places or error is null; wanted: all of them");
  const int size = state.channel->team.size;
  if (size > kOrderShards)
    return base::invalid_argument("fused kernel: {} ranks; wanted: at most {}", size, kOrderShards);
  if (g.m < 1 || g.m > instance.spec.tile_n || g.n < 8 || g.n % 8 != 0 || g.k < 1) {
    return base::invalid_argument("fused kernel: m {}, n {}, k {}; wanted: m 1 to {}, n a multiple of 8, k >= 1", g.m,
                                  g.n, g.k, instance.spec.tile_n);
  }
  const std::span<const int64_t> off = g.row_offsets;
  const bool covers = off.size() == static_cast<size_t>(size) + 1 && off.front() == 0 && off.back() == g.m;
  if (!off.empty() && !(covers && std::is_sorted(off.begin(), off.end()))) {
    return base::invalid_argument("fused kernel: {} row_offsets; wanted: {} ascending from 0 to {}, or none",
                                  off.size(), size + 1, g.m);
  }
  const Operand operands[] = {{"a", g.a, g.lda, g.k}, {"b", g.b, g.ldb, g.k}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  const auto wanted = static_cast<uint64_t>(size * one_shot_tokens(g.m) * one_shot_columns(g.n) * 2);
  if (state.pitch >= wanted) return {};
  return base::invalid_argument("fused kernel: inbox of two buffers of {} bytes; wanted: >= {}", state.pitch, wanted);
}

/// Tokens of the result on a rank.
struct Tokens {
  int64_t first, end;
};
Tokens tokens_of(const OneShotArgs& g, int rank) {
  if (g.row_offsets.empty()) return {0, g.m};
  return {g.row_offsets[static_cast<size_t>(rank)], g.row_offsets[static_cast<size_t>(rank) + 1]};
}

/// Who owns no tokens gets the first chunk all the same: see OneShotParams.
uint32_t chunks_of(const Tokens& tokens) {
  static_assert(kOneShotTokens <= 8 * 32);  // bits
  if (tokens.first == tokens.end) return 1;
  return static_cast<uint32_t>((uint64_t{1} << (tokens.end + 7) / 8) - (uint64_t{1} << tokens.first / 8));
}

}  // namespace

int one_shot_counts(const ConfigSpec& spec, int clusters) { return clusters * spec.cluster() * kConsumerGroups * 4; }

base::Result<PreparedOneShot> prepare_one_shot(const Instance& instance, const OneShotArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  const TeamPod& team = g.state.channel->team;
  PreparedOneShot out{};
  out.instance = &instance;
  GemmParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode(as_a(s, {"b", g.b, g.n, g.k, g.ldb, 0, 0}), s.dtype, &gemm.a));
  OVERLACE_TRY(encode(as_tokens(s, g.a, g.m, g.k, g.lda), s.dtype, &gemm.b));
  const Tokens mine = tokens_of(g, team.rank);
  const bool is_empty = mine.first == mine.end;  // then the map has a row that is not stored
  Matrix c = as_c(s, g.c, is_empty ? 1 : mine.end - mine.first, g.n, g.ldc);
  c.box_rows = static_cast<int>(c.rows);
  OVERLACE_TRY(encode(c, s.dtype, &gemm.c));
  out.params.first_token = is_empty ? -1 : static_cast<int32_t>(mine.first);
  gemm.error = g.error;
  const auto most = prepare_swapped_tiles(instance, team, {g.m, g.n, g.k}, g.most_clusters, &gemm);
  if (!most.ok()) return most.status();
  out.clusters = std::min(g.grid_clusters > 0 ? std::min(*most, g.grid_clusters) : *most, gemm.num_tiles);
  OneShotParams& x = out.params.exchange;
  x.channel = *g.state.channel;
  x.inbox = g.state.inbox;
  x.pitch = g.state.pitch;
  x.slot_bytes = static_cast<uint64_t>(one_shot_tokens(g.m) * one_shot_columns(g.n) * 2);
  x.calls = g.state.calls;
  x.places = g.state.places;
  x.count_ctas = static_cast<uint32_t>(*most * s.cluster());
  x.chunks = static_cast<int32_t>(one_shot_tokens(g.m) / 8);
  for (int rank = 0; rank < team.size; ++rank) x.chunks_of[rank] = chunks_of(tokens_of(g, rank));
  x.n = static_cast<int32_t>(g.n);
  x.bias = g.bias;
  return out;
}

base::Status launch_one_shot(const PreparedOneShot& prepared, bool uses_pdl, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, uses_pdl}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
