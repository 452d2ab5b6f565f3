#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "overlace/error.h"
#include "overlace/symmetric.h"
#include "src/base/log.h"
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

SymBuffer RuntimeState::allocate(size_t bytes, size_t align, const std::string& name, uint64_t least) {
  const std::optional<uint64_t> offset = blocks.take(bytes, align, least);
  if (!offset)
    throw OutOfMemory(Errc::heap_exhausted,
                      base::format("symmetric heap exhausted: \"{}\" asked {} bytes, largest free block {}, total {}, "
                                   "in use {}; raise {}",
                                   name, bytes, blocks.largest_free(), blocks.capacity(), blocks.in_use(),
                                   blocks.capacity() > options.heap_bytes ? "max_heap_bytes" : "heap_bytes"));
  backend->poison(*offset, align_up(bytes, kHeapAlign));
  return {*offset, bytes};
}

void RuntimeState::give_back(SymBuffer block) {
  const std::optional<uint64_t> size = blocks.give_back(block.offset);
  if (size) backend->poison(block.offset, *size);
}

base::Result<bool> RuntimeState::grow_heap(uint64_t bytes) {
  constexpr uint64_t kStep = 2;  // by half of what there is at least, so that few steps are needed
  const uint64_t now = backend->user_bytes();
  if (now >= options.max_heap_bytes) return false;
  const uint64_t wanted = std::min<uint64_t>(options.max_heap_bytes, now + std::max(bytes, now / kStep));
  const base::Status status = backend->grow_heap(wanted);
  if (status.code() == Errc::out_of_memory || status.code() == Errc::not_supported) {
    base::log(base::LogLevel::warn, "runtime", "the symmetric heap stays at {} bytes: {}", now, status.message());
    options.max_heap_bytes = now;  // on all ranks: the answer was agreed upon
    return false;
  }
  OVERLACE_TRY(status);
  blocks.grow(backend->user_offset() + backend->user_bytes());
  ++stats.heap_growths;
  base::log(base::LogLevel::info, "runtime", "the symmetric heap grew from {} to {} bytes", now, backend->user_bytes());
  return true;
}

SymBuffer SymmetricHeap::alloc(size_t bytes, size_t align, const char* name) {
  RuntimeState& state = *state_;
  state.enter();
  if (align == 0 || (align & (align - 1)) != 0 || align > kMaxAlign)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("heap.alloc \"{}\": align is {}, wanted a power of two <= 2 MiB", name, align));
  const SymBuffer block = bytes == 0 ? SymBuffer{} : state.allocate(bytes, align, name, 0);
  state.fold_heap_call(base::format("alloc {} {} \"{}\"", bytes, align, name));
  return block;
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

namespace runtime {

void fill_in_heap(Backend backend, RuntimeOptions* options) {
  constexpr size_t kGrowth = 16;
  const size_t usual = backend == Backend::cpu ? size_t{64} << 20 : size_t{1} << 30;
  const bool is_given = options->heap_bytes != 0;
  if (!is_given) options->heap_bytes = options->max_heap_bytes == 0 ? usual : std::min(usual, options->max_heap_bytes);
  if (options->max_heap_bytes == 0) options->max_heap_bytes = options->heap_bytes * (is_given ? 1 : kGrowth);
}

}  // namespace runtime

size_t SymmetricHeap::capacity() const { return state_->blocks.capacity(); }

size_t SymmetricHeap::in_use() const { return state_->blocks.in_use(); }

}  // namespace overlace
