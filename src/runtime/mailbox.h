// What both control planes share: arrived messages, the state of the peers, the first cause of an abort.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/runtime/control.h"
#include "src/spec/layout_pod.h"

namespace overlace::runtime {

class MailboxControl : public Control {
 public:
  MailboxControl(int rank, int size, uint64_t generation);
  ~MailboxControl() override;
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  uint64_t generation() const override { return generation_; }
  int64_t pid(int peer) const override;
  std::string peer_state(int peer) const override;
  bool is_closing(int peer) const override;
  bool is_any_closing() const override { return num_closing_.load(std::memory_order_acquire) != 0; }
  base::Result<Message> receive(int from, const Tag& tag, int64_t timeout_ms, const std::string& what) override;
  bool has_arrived(int from, const Tag& tag) const override;
  void pass(uint64_t group, uint32_t number, uint64_t answer) override;
  void listen(std::function<void(const AbortCause&)> listener) override;

  /// News from `from`, on any thread.
  void arrived(int from, const Tag& tag, Message message);
  void set_peer(int peer, int64_t pid, RankState state);
  void peer_aborted(int from, const AbortCause& cause);
  /// Unless it left in good order.
  void peer_gone(int from, const std::string& how);
  void peer_left(int from, bool clean);

 protected:
  /// First cause wins; wakes receivers; tells the listener if `tell`.
  void fail(const AbortCause& cause, bool tell);
  /// This rank is alive now: fails if a peer has failed already.
  void start_failing();

 private:
  struct Peer {
    int64_t pid = 0;
    RankState state = RankState::starting;
    bool is_gone = false;  // its connection has ended, in good order or not
    bool was_alive = false;
    AbortCause failure;  // the first
  };
  /// A meeting that this rank did not come to.
  struct Passed {
    uint64_t answer = 0;
    uint32_t number = 0;
    bool is_set = false;
  };
  void tell_answer(int to, const Tag& tag, uint64_t answer);
  /// At once if one of the two is alive.
  void peer_failed(int from, const AbortCause& cause);
  AbortCause lost(int peer, const std::string& how) const;

  const int rank_;
  const uint64_t generation_;
  std::atomic<int> num_closing_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::map<std::pair<int, Tag>, std::deque<Message>> messages_;
  std::unordered_map<uint64_t, std::vector<Passed>> passed_;  // by group: number n at n % kKeptAnswers
  size_t num_waiting_ = 0;                                    // messages of meetings that are in messages_
  AbortCause cause_;
  bool is_alive_ = false;
  std::mutex listener_mutex_;  // held while the listener runs, so that listen({}) returns after its end
  std::function<void(const AbortCause&)> listener_;
  bool was_told_ = false;
};

base::Result<std::unique_ptr<Control>> open_threads_control(Bootstrap& bootstrap, uint64_t generation,
                                                            int64_t timeout_ms);
struct Meeting;
base::Result<std::unique_ptr<Control>> open_socket_control(Bootstrap& bootstrap, const Meeting& meeting,
                                                           int64_t timeout_ms);

}  // namespace overlace::runtime
