#include "src/runtime/mailbox.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/runtime/clock.h"
#include "src/runtime/interrupt.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kLastWordNs = 5'000'000'000;  // on a machine that is loaded, too

}  // namespace

MailboxControl::MailboxControl(int rank, int size, uint64_t generation)
    : rank_(rank), generation_(generation), peers_(static_cast<size_t>(size)) {}

MailboxControl::~MailboxControl() {
  for (auto& [key, queue] : messages_)
    for (const Message& message : queue)
      if (message.fd >= 0) ::close(message.fd);
}

int64_t MailboxControl::pid(int peer) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(peer)].pid;
}

std::string MailboxControl::peer_state(int peer) const {
  const std::lock_guard lock(mutex_);
  if (peer < 0 || static_cast<size_t>(peer) >= peers_.size()) return "unknown";
  const Peer& p = peers_[static_cast<size_t>(peer)];
  return p.is_gone && p.state != RankState::left ? "lost" : rank_state_name(p.state);
}

bool MailboxControl::is_closing(int peer) const {
  const std::lock_guard lock(mutex_);
  return peer >= 0 && peer < size() && peers_[static_cast<size_t>(peer)].state == RankState::closing;
}

void MailboxControl::set_peer(int peer, int64_t pid, RankState state) {
  const std::lock_guard lock(mutex_);
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (state == RankState::closing) {
    num_closing_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
  if (pid != 0) p.pid = pid;
  p.state = state;
  p.was_alive = p.was_alive || state == RankState::alive;
}

base::Result<Message> MailboxControl::receive(int from, const Tag& tag, int64_t timeout_ms, const std::string& what) {
  std::unique_lock lock(mutex_);
  const auto key = std::pair(from, tag);
  const auto has_news = [&] {
    const Peer& peer = peers_[static_cast<size_t>(from)];
    return messages_.contains(key) || cause_.code != Errc::ok || peer.is_gone || peer.failure.code != Errc::ok;
  };
  const int64_t start_ns = now_ns();
  int64_t deadline_ns = start_ns + timeout_ms * 1'000'000;
  bool comes_no_more = false;
  InterruptClock interrupts(start_ns);
  for (int64_t now = start_ns; !has_news() && now < deadline_ns; now = now_ns()) {
    // What it has passed by it says at once; to a meeting that it has not come to it does not come any more.
    if (tag.kind == kMeeting && !comes_no_more && peers_[static_cast<size_t>(from)].state == RankState::closing) {
      comes_no_more = true;
      deadline_ns = std::min(deadline_ns, now + kLastWordNs);
    }
    lock.unlock();
    if (interrupts.is_interrupted(now)) return base::error(Errc::aborted, "rank {} was interrupted: {}", rank_, what);
    lock.lock();
    if (!has_news())
      changed_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline_ns - now, InterruptClock::kPeriodNs)));
  }
  if (const auto it = messages_.find(key); it != messages_.end()) {
    Message message = std::move(it->second.front());
    it->second.pop_front();
    if (it->second.empty()) messages_.erase(it);
    if (tag.kind == kMeeting) --num_waiting_;
    return message;
  }
  if (cause_.code != Errc::ok) return base::Status(cause_.code, cause_.message);
  const Peer& peer = peers_[static_cast<size_t>(from)];
  if (peer.failure.code != Errc::ok) return base::Status(peer.failure.code, peer.failure.message);
  if (peer.is_gone) {
    const AbortCause cause = lost(from, "it has left");
    return base::Status(cause.code, cause.message);
  }
  if (comes_no_more)
    return base::error(Errc::peer_lost, "lost rank {}: it has called close(); rank {} waited for it, {}", from, rank_,
                       what);
  return base::error(Errc::timeout, "timeout after {:.1f} s: rank {} waited for rank {}, {}; peer state {}",
                     static_cast<double>(timeout_ms) * 1e-3, rank_, from, what, rank_state_name(peer.state));
}

bool MailboxControl::has_arrived(int from, const Tag& tag) const {
  const std::lock_guard lock(mutex_);
  return messages_.contains({from, tag});
}

void MailboxControl::listen(std::function<void(const AbortCause&)> listener) {
  const std::lock_guard listener_lock(listener_mutex_);
  listener_ = std::move(listener);
  AbortCause cause;
  {
    const std::lock_guard lock(mutex_);
    cause = cause_;
  }
  if (cause.code == Errc::ok || !listener_ || was_told_) return;
  was_told_ = true;
  listener_(cause);
}

void MailboxControl::arrived(int from, const Tag& tag, Message message) {
  uint64_t answer = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto group = tag.kind == kMeeting ? passed_.find(tag.group) : passed_.end();
    const Passed* const passed = group == passed_.end() ? nullptr : &group->second[tag.number % kKeptAnswers];
    if (passed == nullptr || !passed->is_set || passed->number != tag.number) {
      messages_[{from, tag}].push_back(std::move(message));
      if (tag.kind == kMeeting) ++num_waiting_;
      changed_.notify_all();
      return;
    }
    answer = passed->answer;
  }
  tell_answer(from, tag, answer);
}

void MailboxControl::pass(uint64_t group, uint32_t number, uint64_t answer) {
  const Tag tag{group, kMeeting, number};
  std::vector<int> waiting;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Passed>& kept = passed_[group];
    if (kept.empty()) kept.resize(kKeptAnswers);
    kept[number % kKeptAnswers] = {answer, number, true};
    for (int peer = 0; num_waiting_ != 0 && peer < size(); ++peer) {
      const auto found = messages_.find({peer, tag});
      if (found == messages_.end()) continue;
      num_waiting_ -= found->second.size();
      messages_.erase(found);
      waiting.push_back(peer);
    }
  }
  for (const int peer : waiting) tell_answer(peer, tag, answer);
}

/// A peer that cannot be told is gone, and the watcher sees that, or finds the deadline.
void MailboxControl::tell_answer(int to, const Tag& tag, uint64_t answer) {
  std::byte said[1 + sizeof answer] = {kHasPassed};
  std::memcpy(said + 1, &answer, sizeof answer);
  (void)send(to, tag, said);
}

void MailboxControl::peer_aborted(int from, const AbortCause& cause) {
  set_peer(from, 0, RankState::aborted);
  // Everybody sees a lost rank the same way, whoever noticed first.
  if (cause.code == Errc::peer_lost) return peer_failed(from, cause);
  peer_failed(from, {Errc::aborted, base::format("aborted by rank {}: {}", from, cause.message)});
}

void MailboxControl::peer_failed(int from, const AbortCause& cause) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (peer.failure.code == Errc::ok) peer.failure = cause;
    changed_.notify_all();
    if (!is_alive_ && !peer.was_alive) return;
  }
  fail(cause, true);
}

void MailboxControl::start_failing() {
  AbortCause first;
  {
    const std::lock_guard lock(mutex_);
    is_alive_ = true;
    for (const Peer& peer : peers_)
      if (first.code == Errc::ok) first = peer.failure;
  }
  if (first.code != Errc::ok) fail(first, true);
}

AbortCause MailboxControl::lost(int peer, const std::string& how) const {
  const Peer& p = peers_[static_cast<size_t>(peer)];
  return {Errc::peer_lost,
          base::format("lost rank {} (pid {}, last state {}): {}", peer, p.pid, rank_state_name(p.state), how)};
}

void MailboxControl::peer_gone(int from, const std::string& how) {
  AbortCause cause;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    if (peer.is_gone) return;
    peer.is_gone = true;
    cause = lost(from, how);
    changed_.notify_all();
  }
  peer_failed(from, cause);
}

void MailboxControl::peer_left(int from, bool clean) {
  AbortCause cause;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    peer.state = RankState::left;
    peer.is_gone = true;
    cause = lost(from, "it ended without close()");
    changed_.notify_all();
  }
  if (!clean) peer_failed(from, cause);
}

void MailboxControl::fail(const AbortCause& cause, bool tell) {
  {
    const std::lock_guard lock(mutex_);
    if (cause_.code == Errc::ok) cause_ = cause;
    changed_.notify_all();
  }
  if (!tell) return;
  const std::lock_guard listener_lock(listener_mutex_);
  if (was_told_ || !listener_) return;
  was_told_ = true;
  listener_(cause);
}

}  // namespace overlace::runtime
