#include "src/runtime/backend/cpu/agent.h"

#include "src/runtime/backend/cpu/futex.h"
#include "src/runtime/backend/cpu/net.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/backend/cpu/wire.h"

namespace overlace::runtime {
namespace {

void ring_one(Doorbell& bell) {
  if (std::atomic_ref(bell.waiters).load(std::memory_order_seq_cst) == 0) return;
  std::atomic_ref(bell.rings).fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&bell.rings);
}

}  // namespace

void ring(char* base, uint32_t bell) {
  CpuControl& control = cpu_control(base);
  if (std::atomic_ref(control.waiters).load(std::memory_order_seq_cst) == 0) return;
  if (bell != kAnyBell) ring_one(control.bells[bell]);
  ring_one(control.bells[kAnyBell]);
}

const char* step_name(Step::Kind kind) {
  constexpr const char* kNames[] = {"put", "put_signal", "add", "post", "word", "fence", "wait", "start"};
  return kNames[static_cast<size_t>(kind)];
}

void observe(Runtime& runtime, Observer* observer) {
  if (CpuAgent* agent = cpu_agent(runtime)) agent->observer.store(observer, std::memory_order_release);
}

CpuAgent::CpuAgent() = default;
CpuAgent::~CpuAgent() = default;

void CpuAgent::abort(const AbortCause& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (cause_.code == Errc::ok) cause_ = cause;
  }
  std::atomic_ref(abort_word()).store(1, std::memory_order_seq_cst);
  for (uint32_t bell = 0; bell <= kBells; ++bell) ring(bases[static_cast<size_t>(rank)], bell);
  if (wire) wire->stop_delivering();
}

AbortCause CpuAgent::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace overlace::runtime
