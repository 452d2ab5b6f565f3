#include "src/runtime/engine/mpi/engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "overlace/error.h"
#include "overlace/signal.h"
#include "src/runtime/engine/accumulator.h"
#include "src/runtime/engine/cpu_engine.h"
#include "src/runtime/engine/mpi/port.h"
#include "src/runtime/state.h"
#include "src/runtime/wait.h"

namespace overlace::runtime::mpi {
namespace {

constexpr size_t kPiece = size_t{4} << 20;  // of a message: sums start while the rest is on its way

enum class Op : uint32_t { all_gather = 1, reduce_scatter, all_reduce, all_to_all, broadcast, reduce, send };

const char* op_name(Op op) {
  constexpr const char* kNames[] = {"?",          "all_gather", "reduce_scatter", "all_reduce",
                                    "all_to_all", "broadcast",  "reduce",         "send"};
  const auto index = static_cast<size_t>(op);
  return kNames[index < std::size(kNames) ? index : 0];
}

/// What both sides of a message must have said alike.
struct Call {
  Op op;
  DType dtype;
  uint64_t count;  // elements of the whole call; send: bytes
  std::string text() const {
    return op == Op::send ? base::format("{} bytes", count)
                          : base::format("{} of {} {}", op_name(op), count, dtype_name(dtype));
  }
};

class MpiEngine final : public CpuEngine {
 public:
  MpiEngine(TeamState& team, const ChannelPod& channel, SignalIds ids, Service& service, uint64_t context,
            std::vector<int> members)
      : CpuEngine(team, "mpi"),
        channel_(channel),
        receive_id_(ids.first),
        send_id_(ids.first + 1),
        service_(service),
        size_(members.size()),
        taken_(members.size()),
        port_(service, context, std::move(members), [this] { notify(channel_); }) {}

  std::string version() const override { return service_.name() + " " + service_.version(); }

  void all_gather(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    std::vector<size_t> begin(size_ + 1);
    for (size_t r = 0; r <= size_; ++r) begin[r] = r * count;
    gather({Op::all_gather, dtype, count}, send, recv, begin);
  }
  void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    std::vector<size_t> begin(size_ + 1);
    for (size_t r = 0; r <= size_; ++r) begin[r] = r * count;
    reduce_blocks({Op::reduce_scatter, dtype, count}, send, recv, begin);
  }
  void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    std::vector<size_t> begin(size_ + 1);
    for (size_t r = 0; r <= size_; ++r) begin[r] = count * r / size_;
    std::vector<char> mine((begin[self() + 1] - begin[self()]) * dtype_bytes(dtype));
    const Call call{Op::all_reduce, dtype, count};
    reduce_blocks(call, send, mine.data(), begin);
    gather(call, mine.data(), recv, begin);
  }
  void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    const Call call{Op::all_to_all, dtype, count};
    const size_t bytes = count * dtype_bytes(dtype);
    const char* from = static_cast<const char*>(send);
    char* to = static_cast<char*>(recv);
    for (size_t peer = 0; peer < size_; ++peer)
      if (peer != self()) push(call, peer, from + peer * bytes, bytes);
    if (bytes != 0) std::memmove(to + self() * bytes, from + self() * bytes, bytes);
    for (size_t peer = 0; peer < size_; ++peer)
      if (peer != self()) pull(call, peer, to + peer * bytes, bytes);
    settle();
  }
  void broadcast(void* buffer, size_t count, DType dtype, int root, StreamRef stream) override {
    enter(stream);
    const Call call{Op::broadcast, dtype, count};
    const size_t source = check_rank(root, "broadcast: root"), bytes = count * dtype_bytes(dtype);
    if (source != self()) return pull(call, source, buffer, bytes);
    for (size_t peer = 0; peer < size_; ++peer)
      if (peer != self()) push(call, peer, buffer, bytes);
    settle();
  }
  void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) override {
    enter(stream);
    check_sum(dtype);
    const Call call{Op::reduce, dtype, count};
    const size_t target = check_rank(root, "reduce: root");
    if (target == self()) return sum_in_order(call, send, recv, count);
    push(call, target, send, count * dtype_bytes(dtype));
    settle();
  }
  void abort() override {
    CpuEngine::abort();
    service_.give_up();
  }

 private:
  void push(const Call& call, size_t peer, const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    Head head;
    head.kind = static_cast<uint32_t>(call.op);
    for (size_t begin = 0; begin < bytes; begin += kPiece) {
      const size_t piece = std::min(kPiece, bytes - begin);
      head.words = {call.count, static_cast<uint64_t>(call.dtype), bytes};
      port_.send(peer, head, from + begin, piece);
    }
  }

  /// The next piece of `peer`, `piece` of the `bytes` of the call, checked against what this rank was called with.
  Port::Letter next(const Call& call, size_t peer, size_t bytes, size_t piece) {
    WaitSite site{.kind = WaitKind::engine, .peer = static_cast<uint32_t>(peer), .id = receive_id_, .may_lag = true};
    site.expected = ++taken_[peer];
    site.word = port_.arrived(peer);
    wait(site, [&] { return port_.has(peer) || !port_.failure().ok(); });
    if (const base::Status why = port_.failure(); !port_.has(peer)) team_.runtime->fail(why);
    Port::Letter letter = port_.take(peer);
    const Call theirs{static_cast<Op>(letter.head.kind), static_cast<DType>(letter.head.words[1]),
                      letter.head.words[0]};
    if (theirs.op == call.op && theirs.dtype == call.dtype && theirs.count == call.count &&
        letter.head.words[2] == bytes) {
      if (letter.data.size() == piece) return letter;
      team_.runtime->fail(base::error(Errc::engine,
                                      "engine mpi, team \"{}\": rank {} sent {} bytes of {}, wanted the next {} of {}",
                                      team_.name, peer, letter.data.size(), call.text(), piece, bytes));
    }
    team_.runtime->fail(
        base::error(Errc::engine,
                    "engine mpi, team \"{}\": rank {} is in {} and rank {} in {}; wanted the same calls "
                    "in the same order",
                    team_.name, team_.rank, call.text(), peer, theirs.text()));
  }

  void pull(const Call& call, size_t peer, void* to, size_t bytes) {
    for (size_t begin = 0; begin < bytes; begin += kPiece) {
      const size_t piece = std::min(kPiece, bytes - begin);
      const Port::Letter letter = next(call, peer, bytes, piece);
      std::memcpy(static_cast<char*>(to) + begin, letter.data.data(), piece);
    }
  }

  void gather(const Call& call, const void* send, void* recv, const std::vector<size_t>& begin) {
    const size_t unit = dtype_bytes(call.dtype), mine = (begin[self() + 1] - begin[self()]) * unit;
    char* to = static_cast<char*>(recv);
    for (size_t i = 1; i < size_; ++i) push(call, (self() + i) % size_, send, mine);
    if (mine != 0) std::memmove(to + begin[self()] * unit, send, mine);
    for (size_t i = 1; i < size_; ++i) {
      const size_t peer = (self() + size_ - i) % size_;
      pull(call, peer, to + begin[peer] * unit, (begin[peer + 1] - begin[peer]) * unit);
    }
    settle();
  }

  void reduce_blocks(const Call& call, const void* send, void* recv, const std::vector<size_t>& begin) {
    check_sum(call.dtype);
    const size_t unit = dtype_bytes(call.dtype);
    const char* from = static_cast<const char*>(send);
    for (size_t i = 1; i < size_; ++i) {
      const size_t peer = (self() + i) % size_;
      push(call, peer, from + begin[peer] * unit, (begin[peer + 1] - begin[peer]) * unit);
    }
    sum_in_order(call, from + begin[self()] * unit, recv, begin[self() + 1] - begin[self()]);
    settle();
  }

  void sum_in_order(const Call& call, const void* own, void* recv, size_t count) {
    const size_t unit = dtype_bytes(call.dtype), bytes = count * unit;
    Accumulator sum(call.dtype, std::min(bytes, kPiece) / unit);
    for (size_t begin = 0; begin < bytes; begin += kPiece) {
      const size_t piece = std::min(kPiece, bytes - begin);
      sum.clear();
      for (size_t r = 0; r < size_; ++r) {
        if (r == self())
          sum.add(static_cast<const char*>(own) + begin, piece / unit);
        else
          sum.add(next(call, r, bytes, piece).data.data(), piece / unit);
      }
      sum.store(static_cast<char*>(recv) + begin, piece / unit);
    }
  }

  void exchange(const std::vector<Message>& messages) override {
    const auto call_of = [](const Message& message) { return Call{Op::send, DType::u8, message.bytes}; };
    for (const Message& message : messages)
      if (message.is_send) push(call_of(message), message.peer, message.data, message.bytes);
    for (const Message& message : messages)
      if (!message.is_send) pull(call_of(message), message.peer, message.data, message.bytes);
    settle();
  }

  /// Until MPI has sent what this rank gave it: a rank that runs ahead must not fill memory, and one that cannot be
  /// reached is an error here.
  void settle() {
    for (size_t peer = 0; peer < size_; ++peer) {
      const WaitSite site{
          .kind = WaitKind::engine, .peer = static_cast<uint32_t>(peer), .id = send_id_, .may_lag = true};
      wait(site, [&] { return port_.unsent(peer) == 0 || !port_.failure().ok(); });
      if (const base::Status why = port_.failure(); !why.ok()) team_.runtime->fail(why);
    }
  }

  template <class Ready>
  void wait(const WaitSite& site, Ready ready) {
    const Errc code = poll_until(channel_, site, ready);
    if (code == Errc::ok) return;
    team_.runtime->enter();  // throws the first cause
    throw_error(code, "engine mpi: a wait ended without a cause");
  }

  const ChannelPod channel_;
  const uint32_t receive_id_, send_id_;  // never added to: they name what is waited for
  Service& service_;
  const size_t size_;
  std::vector<uint64_t> taken_;  // pieces by peer
  Port port_;
};

}  // namespace

base::Result<std::vector<int>> exchange_ranks(Service& service, Control& control, int64_t timeout_ms) {
  std::vector<int> members(static_cast<size_t>(control.size()));
  std::iota(members.begin(), members.end(), 0);
  const int32_t mine[2] = {service.rank(), service.size()};
  base::Result<std::vector<Bytes>> all =
      control.exchange(members, std::as_bytes(std::span(mine)), timeout_ms, "open, engine mpi");
  if (!all.ok()) return all.status();
  std::vector<int> ranks;
  for (size_t r = 0; r < all->size(); ++r) {
    int32_t theirs[2] = {-1, -1};
    if ((*all)[r].size() == sizeof theirs) std::memcpy(theirs, (*all)[r].data(), sizeof theirs);
    const bool is_rank = theirs[0] >= 0 && theirs[0] < theirs[1] && theirs[1] == service.size();
    if (!is_rank || theirs[1] < control.size() || std::find(ranks.begin(), ranks.end(), theirs[0]) != ranks.end())
      return base::error(Errc::not_supported,
                         "engine mpi: rank {} is rank {} of {} in MPI, the runtime has {} ranks; wanted a process of "
                         "one MPI job for each: start them with mpirun or srun",
                         r, theirs[0], theirs[1], control.size());
    ranks.push_back(theirs[0]);
  }
  return ranks;
}

std::unique_ptr<NetEngine> make_engine(Team& team, Service& service, const std::vector<int>& ranks) {
  TeamState& state = team.state();
  std::vector<int> members;
  for (const int member : state.members) members.push_back(ranks[static_cast<size_t>(member)]);
  Channel& channel = make_channel(state, StreamRef::cpu(), {});
  state.engine_channel = &channel;
  const SignalIds ids = channel.ids(2, Domain::cpu, "mpi.message");
  const uint64_t context = hash_word(state.id, hash_text("mpi engine", state.runtime->control->generation()));
  return std::make_unique<MpiEngine>(state, channel.pod(), ids, service, context, std::move(members));
}

}  // namespace overlace::runtime::mpi
