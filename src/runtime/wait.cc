#include "src/runtime/wait.h"

#include <algorithm>
#include <atomic>

#include "src/base/format.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/futex.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/clock.h"
#include "src/runtime/lives.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kSpinNs = 20000;
constexpr int64_t kMaxSleepNs = 20000000;  // a lost wake costs this much, never a hang
constexpr uint32_t kPollsPerCheck = 16;

uint32_t bell_of(const WaitSite& site) { return site.kind == WaitKind::signal ? site.id % kBells : kAnyBell; }

/// This rank and all others; nothing of it is read or sent any more.
void stop_all(CpuAgent& agent, const AbortCause& cause) {
  agent.abort(cause);
  agent.control->spread(cause);
  if (agent.wire) agent.wire->drop_all();
}

std::atomic_ref<uint32_t> host_waiting(const ChannelPod& channel) {
  const CpuAgent& agent = agent_of(channel);
  const int first = agent.first_of_host[static_cast<size_t>(agent.rank)];
  return std::atomic_ref(cpu_control(agent.bases[static_cast<size_t>(first)]).host_waiting);
}

}  // namespace

bool is_observed(const ChannelPod& channel) {
  return agent_of(channel).observer.load(std::memory_order_acquire) != nullptr;
}

std::optional<Errc> observed_wait(const ChannelPod& channel, const WaitSite& site, const std::function<bool()>& ready) {
  CpuAgent& agent = agent_of(channel);
  Observer* observer = agent.observer.load(std::memory_order_acquire);
  if (observer == nullptr) return std::nullopt;
  const int peer = agent.names->world_rank(channel.team.team_id, site.peer);
  return observer->wait({.kind = Step::Kind::wait, .rank = agent.rank, .peer = peer, .id = site.id}, site, ready);
}

std::optional<size_t> observed_pick(const ChannelPod& channel, size_t n) {
  CpuAgent& agent = agent_of(channel);
  Observer* observer = agent.observer.load(std::memory_order_acquire);
  return observer == nullptr ? std::nullopt : observer->pick(agent.rank, n);
}

Waiter::Waiter(const ChannelPod& channel, const WaitSite& site)
    : channel_(channel), site_(site), start_ns_(now_ns()), last_change_ns_(start_ns_), interrupts_(start_ns_) {
  CpuAgent& agent = agent_of(channel);
  agent.waits_for.store(static_cast<int32_t>(site.peer), std::memory_order_relaxed);
  if (site.word != nullptr)
    last_seen_ = std::atomic_ref(*const_cast<uint64_t*>(site.word)).load(std::memory_order_relaxed);
  const uint32_t waiting = host_waiting(channel).fetch_add(1, std::memory_order_relaxed) + 1;
  may_spin_ = agent.wait == WaitPolicy::spin ||
              (agent.wait == WaitPolicy::automatic && static_cast<int64_t>(waiting) <= agent.cores);
  if (!may_spin_) start_sleeping();
}

Waiter::~Waiter() {
  agent_of(channel_).waits_for.store(-1, std::memory_order_relaxed);
  host_waiting(channel_).fetch_sub(1, std::memory_order_relaxed);
  if (!is_sleeping_) return;
  CpuControl& control = cpu_control(own_heap(channel_.team));
  std::atomic_ref(control.bells[bell_of(site_)].waiters).fetch_sub(1, std::memory_order_relaxed);
  std::atomic_ref(control.waiters).fetch_sub(1, std::memory_order_relaxed);
}

void Waiter::start_sleeping() {
  is_sleeping_ = true;
  CpuControl& control = cpu_control(own_heap(channel_.team));
  std::atomic_ref(control.bells[bell_of(site_)].waiters).fetch_add(1, std::memory_order_seq_cst);
  std::atomic_ref(control.waiters).fetch_add(1, std::memory_order_seq_cst);
}

void Waiter::arm() {
  if (!is_sleeping_) return;
  CpuControl& control = cpu_control(own_heap(channel_.team));
  armed_ = std::atomic_ref(control.bells[bell_of(site_)].rings).load(std::memory_order_seq_cst);
}

Errc Waiter::pause() {
  CpuAgent& agent = agent_of(channel_);
  if (is_sleeping_) {
    const int64_t left = start_ns_ + static_cast<int64_t>(agent.timeout_ns) - now_ns();
    uint32_t& rings = cpu_control(own_heap(channel_.team)).bells[bell_of(site_)].rings;
    if (!is_aborted(channel_)) futex_wait(&rings, armed_, std::clamp<int64_t>(left, 1000, kMaxSleepNs));
  } else {
    cpu_relax();
    if (++polls_ % kPollsPerCheck != 0) return Errc::ok;
  }
  if (fork_count() != agent.fork_count) return Errc::forked;
  if (is_aborted(channel_)) {
    if (agent.wire) agent.wire->drop_all();
    return Errc::aborted;
  }
  const int64_t now = now_ns();
  if (site_.word != nullptr) {
    const uint64_t seen = std::atomic_ref(*const_cast<uint64_t*>(site_.word)).load(std::memory_order_relaxed);
    if (seen != last_seen_) last_change_ns_ = now;
    last_seen_ = seen;
  }
  if (now - start_ns_ >= static_cast<int64_t>(agent.timeout_ns) || comes_no_more()) return Errc::timeout;
  if (interrupts_.is_interrupted(now)) {
    stop_all(agent, {Errc::aborted, base::format("rank {} was interrupted while it waited for rank {}", agent.rank,
                                                 agent.names->world_rank(channel_.team.team_id, site_.peer))});
    return Errc::aborted;
  }
  if (!is_sleeping_ && agent.wait != WaitPolicy::spin && now - start_ns_ > kSpinNs) start_sleeping();
  return Errc::ok;
}

/// Another rank's word, slot or chunk, and that rank has closed.
bool Waiter::comes_no_more() const {
  if (site_.may_lag || site_.kind == WaitKind::stream) return false;
  if (static_cast<int>(site_.peer) == channel_.team.rank) return false;
  const CpuAgent& agent = agent_of(channel_);
  return agent.control->is_any_closing() &&
         agent.control->is_closing(agent.names->world_rank(channel_.team.team_id, site_.peer));
}

Errc Waiter::time_out() {
  CpuAgent& agent = agent_of(channel_);
  if (agent.is_claimed.exchange(true, std::memory_order_acq_rel)) {
    if (agent.wire) agent.wire->drop_all();
    return Errc::aborted;
  }
  const int64_t now = now_ns();
  TimeoutRecord& record = agent.record;
  record.rank = static_cast<uint32_t>(channel_.team.rank);
  record.peer = site_.peer;
  record.team = channel_.team.team_id;
  record.id = site_.id;
  record.block = site_.block;
  record.call = site_.call;
  record.kind = site_.kind;
  record.expected = site_.expected;
  record.seen = last_seen_;
  record.waited_ns = static_cast<uint64_t>(now - start_ns_);
  record.last_change_ns = static_cast<uint64_t>(now - last_change_ns_);
  record.extra = site_.extra;
  record.magic = TimeoutRecord::kMagic;
  const int peer = agent.names->world_rank(record.team, record.peer);
  const bool is_lost = comes_no_more();
  std::string text = is_lost ? base::format("lost rank {}: it has called close(); {}", peer,
                                            agent.names->wait_text(record, agent.control->peer_state(peer)))
                             : agent.names->timeout_text(record, agent.control->peer_state(peer));
  if (agent.more_of_timeout) text += agent.more_of_timeout();
  const Errc code = is_lost ? Errc::peer_lost : Errc::timeout;
  stop_all(agent, {code, std::move(text)});
  return code;
}

void notify(const ChannelPod& channel) { ring(own_heap(channel.team), kAnyBell); }

bool is_aborted(const ChannelPod& channel) {
  return std::atomic_ref(*channel.team.abort_word).load(std::memory_order_acquire) != 0;
}

Errc sleep_until(const ChannelPod& channel, int64_t time_ns) {
  uint32_t never = 0;
  for (int64_t left = time_ns - now_ns(); left > 0; left = time_ns - now_ns()) {
    if (is_aborted(channel)) return Errc::aborted;
    futex_wait(&never, 0, std::min(left, kMaxSleepNs));
  }
  return is_aborted(channel) ? Errc::aborted : Errc::ok;
}

}  // namespace overlace::runtime
