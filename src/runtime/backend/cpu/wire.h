// One thread per rank that delivers this rank's puts and signals: late, in pieces and out of order (adversary), or at
// the pace of an emulated link. Without either there is no wire and puts are stores.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "overlace/runtime.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/state.h"

namespace overlace::runtime {

/// What happens at the receiver when the payload is there.
struct Arrival {
  enum class Kind { none, add, post, word, word_release } kind = Kind::none;
  uint64_t* target = nullptr;
  uint64_t value = 0;
  uint32_t bell = kAnyBell;
  uint32_t id = 0;  // add, post: the signal
};

/// The store of an arrival and the wake of whoever waits for it. `base`: heap of the receiver.
void apply(const Arrival& arrival, char* base);

/// Rows of a put; one row if it is contiguous.
struct Payload {
  char* dst = nullptr;
  const char* src = nullptr;
  size_t dst_pitch = 0, src_pitch = 0, row_bytes = 0, rows = 0;
  size_t bytes() const { return row_bytes * rows; }
  /// Copies bytes [begin, end) of the rows laid end to end.
  void copy(size_t begin, size_t end) const;
};

class Wire {
 public:
  Wire(CpuAgent& agent, const AdversaryOptions& adversary, const LinkOptions& link);
  ~Wire();

  /// Stores to the rank itself pass the wire only under the adversary; to others, if the link is between them.
  bool carries(int peer) const;
  /// Payload (may be empty) to a world rank, then the arrival.
  void send(int peer, const Payload& payload, const Arrival& arrival);
  /// The calling thread's earlier puts to that rank come before its later arrivals there.
  void fence(int peer);
  struct Issuer;
  /// The calling thread, as one that issues.
  Issuer& issuer();
  /// Sources of its puts have been read; everything of it has arrived.
  static bool is_flushed(const Issuer& issuer);
  static bool is_quiet(const Issuer& issuer);
  /// Everything of this rank has arrived.
  bool is_idle() const { return in_flight_.load(std::memory_order_acquire) == 0; }
  /// Paced read: when `bytes` from `peer`'s heap may be taken, in now_ns() time. 0: at once.
  int64_t reserve_get(int peer, size_t bytes);

  /// After an abort: nothing more is delivered. Does not wait.
  void stop_delivering();
  /// Also waits for the piece that is being copied, so that sources may be freed.
  void drop_all();

  /// From now on the thread rests and somebody else delivers: which of the deliveries that the adversary's rules allow
  /// comes next is drawn by him.
  void deliver_by_hand();
  size_t num_deliverable();
  /// Returns what that was, and for whom.
  Step deliver_one(size_t index);
  /// Nothing is on its way any more.
  void forget_all();

  void set_sink(TransferSink sink);

 private:
  struct Piece {
    size_t begin, end;
    int64_t due_ns;
    bool is_done;
  };
  struct Job {
    uint64_t number;
    int peer;
    Issuer* issuer;
    Payload payload;
    std::vector<char> early_copy;  // the source as it was when the put was issued
    std::vector<Piece> pieces;
    size_t pieces_left;
    Arrival arrival;
    int64_t arrival_due_ns;
    uint64_t after;  // puts of this issuer up to this number come before the arrival
    int64_t busy_begin_ns, busy_end_ns;
  };
  struct Choice {
    Job* job = nullptr;
    size_t piece = 0;  // == pieces.size(): the arrival
    int64_t due_ns = 0;
  };
  using Queue = std::deque<std::unique_ptr<Job>>;

  bool is_paced(int peer) const;  // by the emulated link
  Issuer& issuer_locked();
  void clear();
  void cut(Job& job, size_t bytes, int64_t begin_ns);
  std::pair<int64_t, int64_t> reserve(int from, int to, size_t bytes);
  int64_t random_delay_ns();
  bool is_ready(const Queue& queue, size_t index) const;
  void collect(const Queue& queue, std::vector<Choice>& choices) const;
  /// Something due now, or nothing and when to look again.
  Choice choose(int64_t now, int64_t& next_ns);
  void deliver(const Choice& choice, std::unique_lock<std::mutex>& lock);
  void finish(Job& job);
  void run();

  CpuAgent& agent_;
  const AdversaryOptions adversary_;
  const LinkOptions link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Queue> queues_;  // by peer
  std::map<uint32_t, std::unique_ptr<Issuer>> issuers_;
  std::mt19937_64 random_;
  uint64_t next_number_ = 1;
  int64_t wake_ns_ = 0;  // when the sleeping thread looks again by itself; 0: it is awake
  std::atomic<uint64_t> in_flight_{0};
  std::atomic<bool> is_stopped_{false};
  bool is_delivering_ = false, is_ending_ = false, is_by_hand_ = false;
  TransferSink sink_;
  std::thread thread_;
};

/// One thread that issues; its counters outlive its jobs.
struct Wire::Issuer {
  std::atomic<uint64_t> unread{0}, in_flight{0};
  std::vector<uint64_t> fenced;  // by peer: last job before its last fence
};

}  // namespace overlace::runtime
