#include <algorithm>
#include <cstring>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "overlace/timeline.h"
#include "src/base/nvtx.h"
#include "src/base/trace.h"
#include "src/exec/run.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

constexpr size_t kPieceBytes = 64 * 1024;  // what Team::exchange takes

/// The texts of all ranks, piece by piece.
std::vector<std::string> gather(Team& team, const std::string& mine) {
  const uint64_t length = mine.size();
  std::vector<std::string> out(static_cast<size_t>(team.size()));
  uint64_t longest = 0;
  for (const Bytes& theirs : team.exchange(std::as_bytes(std::span(&length, 1)))) {
    uint64_t value = 0;
    std::memcpy(&value, theirs.data(), std::min(sizeof value, theirs.size()));
    longest = std::max(longest, value);
  }
  for (uint64_t at = 0; at < longest; at += kPieceBytes) {
    const std::string_view piece = std::string_view(mine).substr(std::min<size_t>(at, mine.size()), kPieceBytes);
    const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(piece.data(), piece.size())));
    for (size_t r = 0; r < out.size(); ++r) out[r].append(reinterpret_cast<const char*>(all[r].data()), all[r].size());
  }
  return out;
}

}  // namespace

bool set_nvtx(bool on) { return base::set_nvtx(on).value(); }

struct Timeline::State {
  Channel* channel;
  base::Trace trace;
  bool is_recording = true;
};

Timeline::Timeline(Channel& channel) : state_(new State{&channel, {}}) { exec::set_trace(channel, &state_->trace); }

Timeline::~Timeline() {
  if (!state_->is_recording) return;
  try {
    exec::set_trace(*state_->channel, nullptr);
  } catch (...) {
    return;  // a destructor has nobody to tell
  }
}

void Timeline::label(std::string_view text) {
  if (state_->is_recording) exec::set_trace_label(*state_->channel, text);
}

void Timeline::write(const std::string& path) {
  State& state = *state_;
  if (!state.is_recording) base::invalid_argument("timeline.write: it was written before, wanted once").or_throw();
  Team& team = state.channel->team();
  team.runtime().state().synchronize();
  state.trace.merge(std::move(exec::collect_trace(*state.channel).value()));
  exec::set_trace(*state.channel, nullptr);
  state.is_recording = false;
  const std::vector<std::string> parts = gather(team, state.trace.to_json());
  if (team.rank() != 0) return;
  base::Trace all;
  for (const std::string& part : parts) all.merge(std::move(base::Trace::from_json(part).value()));
  all.emulated = team.runtime().is_emulated();
  exec::join_arrows(all);
  base::write_trace(all, path).or_throw();
}

}  // namespace overlace
