#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "overlace/error.h"
#include "overlace/symmetric.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

constexpr size_t kMaxAlign = size_t{2} << 20;

}  // namespace

void RuntimeState::fold_heap_call(std::string call) {
  ++heap_calls;
  heap_hash = runtime::hash_text(call, heap_hash);
  last_heap_call = std::move(call);
}

SymBuffer SymmetricHeap::alloc(size_t bytes, size_t align, const char* name) {
  RuntimeState& state = *state_;
  state.enter();
  if (align == 0 || (align & (align - 1)) != 0 || align > kMaxAlign)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("heap.alloc \"{}\": align is {}, wanted a power of two <= 2 MiB", name, align));
  if (bytes == 0) {
    state.fold_heap_call(base::format("alloc {} {} \"{}\"", bytes, align, name));
    return {};
  }
  const std::optional<uint64_t> offset = state.blocks.take(bytes, align);
  if (!offset)
    throw OutOfMemory(
        Errc::heap_exhausted,
        base::format("symmetric heap exhausted: \"{}\" asked {} bytes, largest free block {}, total {}, "
                     "in use {}; raise heap_bytes",
                     name, bytes, state.blocks.largest_free(), state.blocks.capacity(), state.blocks.in_use()));
  state.fold_heap_call(base::format("alloc {} {} \"{}\"", bytes, align, name));
  state.backend->poison(*offset, align_up(bytes, kHeapAlign));
  return {*offset, bytes};
}

void SymmetricHeap::free(SymBuffer buffer) {
  RuntimeState& state = *state_;
  if (state.is_forked() || state.is_closed) state.enter();
  if (!buffer) return;
  const std::optional<uint64_t> size = state.blocks.give_back(buffer.offset);
  if (!size)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("heap.free: no block starts at offset {} ({} bytes); wanted one that alloc gave "
                                       "and that was not freed before",
                                       buffer.offset, buffer.bytes));
  state.fold_heap_call(base::format("free {}", buffer.offset));
  state.backend->poison(buffer.offset, *size);
}

void SymmetricHeap::verify() {
  RuntimeState& state = *state_;
  state.enter();
  const std::string mine =
      base::format("{} calls, hash {:016x}, last {}", state.heap_calls, state.heap_hash, state.last_heap_call);
  const std::vector<Bytes> all =
      state.exchange(*state.teams[0], std::as_bytes(std::span(mine.data(), mine.size())), "heap.verify");
  std::map<std::string, int> votes;
  std::vector<std::string> texts;
  for (const Bytes& entry : all) {
    texts.emplace_back(reinterpret_cast<const char*>(entry.data()), entry.size());
    ++votes[texts.back()];
  }
  // The majority is right; where there is none, rank 0 is.
  std::string right = texts[0];
  for (const auto& [text, count] : votes)
    if (count > votes[right]) right = text;
  for (size_t r = 0; r < texts.size(); ++r)
    if (texts[r] != right)
      throw PlanMismatch(Errc::plan_mismatch,
                         base::format("heap.verify: rank {} made other heap calls: {}; wanted, as the others: {}", r,
                                      texts[r], right));
}

size_t SymmetricHeap::capacity() const { return state_->blocks.capacity(); }

size_t SymmetricHeap::in_use() const { return state_->blocks.in_use(); }

}  // namespace overlace
