// Striped ranges: what all backends share. Each rank says what its range is made of; the backend maps the pages.
#include <algorithm>
#include <cstring>

#include "overlace/error.h"
#include "overlace/symmetric.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

constexpr size_t kMaxParts = 2048;  // of one range: the lists fit one exchange

base::Status check_parts(const RuntimeState& state, const std::string& call, std::span<const StripePart> parts) {
  std::string why;
  const uint64_t granule = state.backend->stripe_granule(&why);
  if (granule == 0) return base::error(Errc::not_supported, "{}: {}", call, why);
  if (parts.empty() || parts.size() > kMaxParts)
    return base::invalid_argument("{}: {} parts, wanted 1 to {}", call, parts.size(), kMaxParts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const StripePart& part = parts[i];
    if (part.rank < 0 || part.rank >= state.world)
      return base::invalid_argument("{}: part {} is for rank {}, wanted 0 to {}", call, i, part.rank, state.world - 1);
    if (part.bytes == 0 || part.bytes % granule != 0)
      return base::invalid_argument("{}: part {} has {} bytes, wanted a multiple of {}", call, i, part.bytes, granule);
    if (state.backend->reach(part.rank) == Reach::net)
      return base::error(Errc::not_supported, "{}: part {} is for rank {}, which loads and stores do not reach", call,
                         i, part.rank);
  }
  return {};
}

std::vector<StripePart> read_parts(const Bytes& bytes) {
  std::vector<StripePart> parts(bytes.size() / sizeof(StripePart));
  if (!parts.empty()) std::memcpy(parts.data(), bytes.data(), parts.size() * sizeof(StripePart));
  return parts;
}

/// What the ranks say of their own ranges: of the others nobody has checked it here.
base::Status check_claims(const RuntimeState& state, const std::string& call,
                          const std::vector<std::vector<StripePart>>& parts) {
  uint64_t total = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank)
    for (const StripePart& part : parts[rank])
      if (part.rank < 0 || part.rank >= state.world || __builtin_add_overflow(total, part.bytes, &total))
        return base::invalid_argument("{}: rank {} has a part of {} bytes for rank {}, wanted one for 0 to {}", call,
                                      rank, part.bytes, part.rank, state.world - 1);
  return {};
}

}  // namespace

StripedRange SymmetricHeap::stripe(std::span<const StripePart> parts, const char* name) {
  RuntimeState& state = *state_;
  state.enter();
  const std::string call = base::format("heap.stripe \"{}\"", name);
  base::Status status = state.check_no_capture(call);
  if (status.ok()) status = check_parts(state, call, parts);
  state.agree(status, call);
  runtime::StripePlan plan{
      .name = name, .number = state.next_stripe++, .parts = {}, .timeout_ms = state.options.timeout_ms};
  for (const Bytes& entry : state.exchange(*state.teams[0], std::as_bytes(parts), call))
    plan.parts.push_back(read_parts(entry));
  // All ranks see the same lists.
  check_claims(state, call, plan.parts).or_throw();
  state.fold_heap_call(base::format("stripe \"{}\"", name));

  base::Result<runtime::StripeMemory> memory = state.backend->stripe(plan);
  state.agree(
      memory.ok() ? base::Status() : base::error(memory.status().code(), "{}: {}", call, memory.status().message()),
      call);
  auto range = std::make_unique<StripeState>();
  range->name = name;
  range->memory = std::move(*memory);
  for (size_t i = 0; i < parts.size(); ++i) {
    range->parts.push_back({parts[i].rank, static_cast<int>(i), range->memory.data + range->bytes, parts[i].bytes});
    range->bytes += parts[i].bytes;
  }
  return StripedRange(state.stripes.emplace_back(std::move(range)).get());
}

void SymmetricHeap::free(const StripedRange& range) {
  RuntimeState& state = *state_;
  state.enter();
  const auto at = std::find_if(state.stripes.begin(), state.stripes.end(),
                               [&](const auto& one) { return one.get() == range.state_; });
  if (at == state.stripes.end())
    throw InvalidArgument(Errc::invalid_argument,
                          "heap.free: the striped range is not one of this runtime, or was freed before");
  if (const base::Status status = state.backend->synchronize(); !status.ok()) state.fail(status);
  state.agree({}, base::format("heap.free of striped range \"{}\"", (*at)->name));
  state.fold_heap_call(base::format("free stripe \"{}\"", (*at)->name));
  state.stripes.erase(at);
}

size_t SymmetricHeap::stripe_granule() const { return state_->backend->stripe_granule(nullptr); }

void* StripedRange::data() const { return state_->memory.data; }

size_t StripedRange::bytes() const { return state_->bytes; }

std::span<const StripePiece> StripedRange::parts() const { return state_->parts; }

std::span<const StripePiece> StripedRange::owned() const { return state_->memory.owned; }

}  // namespace overlace
