#include "src/gnn/levels/next_use.h"

#include <utility>

namespace overlace::gnn {

NextUses::NextUses(const InputTrace& trace, BatchRange range, std::vector<uint32_t> after, uint32_t end_time)
    : offsets_(1, 0), first_(std::move(after)), end_time_(end_time) {
  for (int64_t b = range.begin; b < range.end; ++b) offsets_.push_back(offsets_.back() + trace.inputs(b).size());
  next_.resize(offsets_.back());
  for (int64_t time = range.size(); time-- > 0;) {
    const auto inputs = trace.inputs(range.begin + time);
    uint32_t* next = next_.data() + offsets_[static_cast<size_t>(time)];
    for (size_t i = 0; i < inputs.size(); ++i) next[i] = std::exchange(first_[inputs[i]], static_cast<uint32_t>(time));
  }
}

NextUses NextUses::of_cycle(const InputTrace& trace, BatchRange range) {
  const auto length = static_cast<uint32_t>(range.size());
  std::vector<uint32_t> after(static_cast<size_t>(trace.num_vertices()), kNeverUsed);
  for (int64_t time = range.size(); time-- > 0;)
    for (const uint32_t v : trace.inputs(range.begin + time)) after[v] = length + static_cast<uint32_t>(time);
  // A vertex that the range does not use keeps kNeverUsed, all others are overwritten by their first time.
  return NextUses(trace, range, std::move(after), 2 * length);
}

NextUses NextUses::of_segment(const InputTrace& trace, BatchRange range, std::span<const uint32_t> rows) {
  const auto length = static_cast<uint32_t>(range.size());
  std::vector<uint32_t> after(static_cast<size_t>(trace.num_vertices()), kNeverUsed);
  for (const uint32_t v : rows) after[v] = length;
  return NextUses(trace, range, std::move(after), length + 1);
}

}  // namespace overlace::gnn
