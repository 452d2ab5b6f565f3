// How the ranks of one runtime talk on the host after bootstrap: small messages, descriptors, abort, and the news that
// a rank died. Between processes one SOCK_SEQPACKET connection per pair, between threads shared memory; one thread per
// rank (the watcher) receives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/errc_pod.h"
#include "src/base/status.h"

namespace overlace::runtime {

/// First cause of an abort; kept once set.
struct AbortCause {
  Errc code = Errc::ok;
  std::string message;
};

/// What a message is about; both sides count `number` for themselves.
struct Tag {
  uint64_t group = 0;
  uint32_t kind = 0, number = 0;
  auto operator<=>(const Tag&) const = default;
};

/// The bytes of a text, as the messages of an exchange are given.
inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct Message {
  Bytes bytes;
  int fd = -1;  // owned by whoever received it
};

/// What is known of one rank at a meeting.
struct Attendance {
  bool has_come = false;
  uint64_t answer = 0;  // of one that passed by
  Bytes bytes;          // of one that came
};

class Control {
 public:
  static constexpr size_t kMaxBytes = 64 * 1024;

  /// Collective. Peers are authenticated by uid and by a number that rank 0 drew. Deadline: timeout_ms.
  static base::Result<std::unique_ptr<Control>> open(Bootstrap& bootstrap, int64_t timeout_ms);
  virtual ~Control() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Ranks are threads of this process.
  virtual bool in_process() const = 0;
  virtual int64_t pid(int peer) const = 0;
  /// starting, alive, closing, left, aborted, or lost.
  virtual std::string peer_state(int peer) const = 0;
  /// Whether the peer is in close(): all that it has sent has arrived, and more will not come.
  virtual bool is_closing(int peer) const = 0;
  virtual bool is_any_closing() const = 0;  // cheap
  /// Drawn by rank 0 at open; equal on all ranks, different for every open.
  virtual uint64_t generation() const = 0;

  /// Any thread. At most kMaxBytes; `fd` is duplicated for the receiver (-1: none). A peer that is gone is no error
  /// here: receive() tells why. timeout if it takes nothing.
  virtual base::Status send(int to, const Tag& tag, std::span<const std::byte> bytes, int fd = -1) = 0;
  /// timeout at the deadline (naming `from` and `what`); aborted or peer_lost as soon as that happened. While this rank
  /// and the failed one are still opening that concerns only who waits for the failed one: what others sent before
  /// still arrives, so that ranks that agreed on an error all see it.
  virtual base::Result<Message> receive(int from, const Tag& tag, int64_t timeout_ms, const std::string& what) = 0;

  virtual bool has_arrived(int from, const Tag& tag) const = 0;
  std::vector<int> all_ranks() const;

  /// All-gather among `members` (world ranks, this one included), in their order. All of them make the same calls in
  /// the same order. Called by the thread that opened the runtime. One deadline for all of them; timeout names every
  /// rank that has not come.
  base::Result<std::vector<Bytes>> exchange(std::span<const int> members, std::span<const std::byte> mine,
                                            int64_t timeout_ms, const std::string& what);
  /// All-gather of what is said at a meeting by those who come; who passes by says its answer instead, at once where it
  /// has passed already. `members` as in exchange. Meetings of a group have numbers, which all members count alike.
  base::Result<std::vector<Attendance>> meet(std::span<const int> members, uint64_t group, uint32_t number,
                                             std::span<const std::byte> mine, int64_t timeout_ms,
                                             const std::string& what);
  /// In place of meet by a member that need not come and does not wait: who comes is told `answer`. The last
  /// kKeptAnswers of a group are kept for those who are late.
  virtual void pass(uint64_t group, uint32_t number, uint64_t answer) = 0;
  static constexpr uint32_t kKeptAnswers = 4096;

  /// This rank's half of an exchange, for one that leaves. The tag of the exchange.
  base::Result<Tag> post(std::span<const int> members, std::span<const std::byte> mine);

  /// `listener` runs once, in the watcher or in the thread that aborts, when a peer aborted, died or left; at once if
  /// that has happened already. Everything that waits in receive() returns.
  virtual void listen(std::function<void(const AbortCause&)> listener) = 0;
  /// Any thread. Tells all peers; this rank's own receive() returns as well, its listener is not called.
  virtual void spread(const AbortCause& cause) = 0;
  /// Sets what the peers see as peer_state. From here on any peer's failure is this rank's.
  virtual void set_alive() = 0;
  /// This rank has nothing on its way any more and waits for the others to close.
  virtual void set_closing() = 0;
  /// Last call before destruction. clean: the peers expect it; else they get peer_lost (left).
  virtual void leave(bool clean) = 0;

 protected:
  static constexpr uint32_t kExchange = 1, kMeeting = 2;      // Tag::kind
  static constexpr std::byte kHasCome{'c'}, kHasPassed{'p'};  // in front of what is said at a meeting

 private:
  base::Status missing(std::span<const int> members, const Tag& tag, int64_t timeout_ms, const std::string& what) const;
  std::vector<std::pair<uint64_t, uint32_t>> numbers_;  // exchanges so far by group
};

/// ok if all ranks were, this rank's own failure (without waiting), or the first of the others' with its rank in front.
base::Status agree_on_status(Control& control, const base::Status& mine, int64_t timeout_ms, const std::string& what);

}  // namespace overlace::runtime
