#include "src/runtime/engine/cpu_engine.h"

#include <cstring>

#include "overlace/error.h"
#include "src/runtime/engine/accumulator.h"

namespace overlace::runtime {

void CpuEngine::send(const void* data, size_t bytes, int peer, StreamRef stream) {
  add({true, const_cast<void*>(data), bytes, 0}, peer, stream);
}

void CpuEngine::recv(void* data, size_t bytes, int peer, StreamRef stream) {
  add({false, data, bytes, 0}, peer, stream);
}

void CpuEngine::add(Message message, int peer, StreamRef stream) {
  try {
    enter(stream);
    message.peer = check_rank(peer, message.is_send ? "send: peer" : "recv: peer");
  } catch (...) {
    group_depth_ = 0;
    pending_.clear();
    throw;
  }
  pending_.push_back(message);
  if (group_depth_ == 0) run_pending();
}

void CpuEngine::group_end() {
  if (group_depth_ == 0)
    throw InvalidArgument(Errc::invalid_argument, "group_end: no group is open, wanted a group_begin before");
  if (--group_depth_ == 0) run_pending();
}

void CpuEngine::run_pending() {
  std::vector<Message> pending, own_sends, own_receives, others;
  pending.swap(pending_);
  for (const Message& message : pending)
    (message.peer != self() ? others : message.is_send ? own_sends : own_receives).push_back(message);
  if (own_sends.size() != own_receives.size())
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("engine {}: {} sends and {} receives of this rank with itself in one group, "
                                       "wanted as many",
                                       name_, own_sends.size(), own_receives.size()));
  for (size_t i = 0; i < own_sends.size(); ++i)
    if (own_sends[i].bytes != 0) std::memmove(own_receives[i].data, own_sends[i].data, own_sends[i].bytes);
  exchange(others);
}

void CpuEngine::enter(StreamRef stream) const {
  team_.runtime->enter();
  if (stream.kind != StreamRef::Kind::cpu)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("engine {}: the stream is a CUDA stream, wanted the CPU", name_));
}

void CpuEngine::check_sum(DType dtype) const {
  if (!can_sum(dtype))
    throw Unsupported(
        Errc::not_supported,
        base::format("engine {}: no sum of {}, wanted fp64, fp32, fp16, bf16, i64 or i32", name_, dtype_name(dtype)));
}

size_t CpuEngine::check_rank(int rank, const char* what) const {
  const auto ranks = static_cast<int>(team_.members.size());
  if (rank < 0 || rank >= ranks)
    throw InvalidArgument(Errc::invalid_argument, base::format("{} is {}, wanted 0 to {}", what, rank, ranks - 1));
  return static_cast<size_t>(rank);
}

}  // namespace overlace::runtime
