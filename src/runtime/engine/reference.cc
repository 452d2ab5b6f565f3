#include "src/runtime/engine/reference.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "overlace/error.h"
#include "overlace/signal.h"
#include "src/runtime/engine/accumulator.h"
#include "src/runtime/engine/cpu_engine.h"
#include "src/runtime/state.h"
#include "src/runtime/wait.h"

namespace overlace::runtime {
namespace {

// Chunks on their way between two ranks: half a megabyte covers the round trip of a link of 2 GB/s.
constexpr uint64_t kDepth = 8;
constexpr size_t kMaxChunk = 64 * 1024, kMinChunk = 256;

/// Blocks of a buffer by rank, in elements: block r is [begin[r], begin[r + 1]).
using Blocks = std::vector<size_t>;

Blocks equal_blocks(int size, size_t count) {
  Blocks begin;
  for (size_t r = 0; r <= static_cast<size_t>(size); ++r) begin.push_back(r * count);
  return begin;
}

/// `count` elements cut as evenly as it goes.
Blocks even_blocks(int size, size_t count) {
  Blocks begin;
  for (size_t r = 0; r <= static_cast<size_t>(size); ++r) begin.push_back(count * r / static_cast<size_t>(size));
  return begin;
}

struct Outgoing {
  const char* data;
  size_t bytes;
};

/// Chunks arrive in order; `take` gets each with its offset in the message.
struct Incoming {
  size_t bytes;
  std::function<void(size_t offset, const char* data, size_t bytes)> take;
};

/// Messages to and from each rank, cut into chunks that pass the receiver's inbox for this sender.
struct Traffic {
  explicit Traffic(int size) : out(static_cast<size_t>(size)), in(static_cast<size_t>(size)) {}
  std::vector<std::deque<Outgoing>> out;
  std::vector<std::deque<Incoming>> in;
  std::vector<size_t> out_done = std::vector<size_t>(out.size()), in_done = std::vector<size_t>(in.size());
  std::function<bool(size_t peer)> may_take = [](size_t) { return true; };

  void send(size_t peer, const void* data, size_t bytes) {
    if (bytes != 0) out[peer].push_back({static_cast<const char*>(data), bytes});
  }
  void receive(size_t peer, void* data, size_t bytes) {
    if (bytes == 0) return;
    char* to = static_cast<char*>(data);
    in[peer].push_back({bytes, [to](size_t offset, const char* from, size_t n) { std::memcpy(to + offset, from, n); }});
  }
};

class ReferenceEngine final : public CpuEngine {
 public:
  ReferenceEngine(TeamState& team, const ChannelPod& channel, SignalIds ids, uint64_t staging, size_t chunk)
      : CpuEngine(team, "reference"),
        channel_(channel),
        data_id_(ids.first),
        credit_id_(ids.first + 1),
        staging_(staging),
        chunk_(chunk),
        size_(static_cast<int>(team.members.size())),
        sent_(team.members.size()),
        received_(team.members.size()) {}

  std::string version() const override { return "1"; }

  void all_gather(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    gather(send, recv, equal_blocks(size_, count), dtype);
  }
  void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    check_sum(dtype);
    reduce_blocks(send, recv, equal_blocks(size_, count), dtype);
  }
  void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    check_sum(dtype);
    const Blocks blocks = even_blocks(size_, count);
    std::vector<char> mine((blocks[self() + 1] - blocks[self()]) * dtype_bytes(dtype));
    reduce_blocks(send, mine.data(), blocks, dtype);
    gather(mine.data(), recv, blocks, dtype);
  }
  void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    enter(stream);
    const size_t bytes = count * dtype_bytes(dtype);
    const char* from = static_cast<const char*>(send);
    char* to = static_cast<char*>(recv);
    Traffic traffic(size_);
    for (size_t peer = 0; peer < sent_.size(); ++peer) {
      if (peer == self()) continue;
      traffic.send(peer, from + peer * bytes, bytes);
      traffic.receive(peer, to + peer * bytes, bytes);
    }
    if (bytes != 0) std::memmove(to + self() * bytes, from + self() * bytes, bytes);
    move(traffic);
  }
  void broadcast(void* buffer, size_t count, DType dtype, int root, StreamRef stream) override {
    enter(stream);
    const size_t source = check_rank(root, "broadcast: root"), bytes = count * dtype_bytes(dtype);
    Traffic traffic(size_);
    if (source != self()) traffic.receive(source, buffer, bytes);
    for (size_t peer = 0; peer < sent_.size(); ++peer)
      if (source == self() && peer != self()) traffic.send(peer, buffer, bytes);
    move(traffic);
  }
  void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) override {
    enter(stream);
    check_sum(dtype);
    const size_t target = check_rank(root, "reduce: root");
    if (target != self()) {
      Traffic traffic(size_);
      traffic.send(target, send, count * dtype_bytes(dtype));
      move(traffic);
      return;
    }
    Traffic traffic(size_);
    sum_in_order(traffic, send, recv, count, dtype);
  }

 private:
  void gather(const void* send, void* recv, const Blocks& blocks, DType dtype) {
    const size_t unit = dtype_bytes(dtype), mine = (blocks[self() + 1] - blocks[self()]) * unit;
    char* to = static_cast<char*>(recv);
    Traffic traffic(size_);
    for (size_t peer = 0; peer < sent_.size(); ++peer) {
      if (peer == self()) continue;
      traffic.send(peer, send, mine);
      traffic.receive(peer, to + blocks[peer] * unit, (blocks[peer + 1] - blocks[peer]) * unit);
    }
    if (mine != 0) std::memmove(to + blocks[self()] * unit, send, mine);
    move(traffic);
  }

  void reduce_blocks(const void* send, void* recv, const Blocks& blocks, DType dtype) {
    const size_t unit = dtype_bytes(dtype);
    const char* from = static_cast<const char*>(send);
    Traffic traffic(size_);
    for (size_t peer = 0; peer < sent_.size(); ++peer)
      if (peer != self()) traffic.send(peer, from + blocks[peer] * unit, (blocks[peer + 1] - blocks[peer]) * unit);
    sum_in_order(traffic, from + blocks[self()] * unit, recv, blocks[self() + 1] - blocks[self()], dtype);
  }

  /// Adds to `traffic` that all others send `count` elements here; their sum with `own` goes to `recv`. Chunk by chunk,
  /// and within a chunk in rank order, whoever comes first.
  void sum_in_order(Traffic& traffic, const void* own, void* recv, size_t count, DType dtype) {
    const size_t unit = dtype_bytes(dtype), bytes = count * unit;
    const char* mine = static_cast<const char*>(own);
    char* to = static_cast<char*>(recv);
    Accumulator sum(dtype, chunk_ / unit);
    size_t turn = 0;    // rank whose chunk is next
    size_t offset = 0;  // of the chunk being summed
    const auto advance = [&](const char* data, size_t n) {
      sum.add(data, n / unit);
      ++turn;
    };
    const auto settle = [&] {
      while (offset < bytes) {
        const size_t n = std::min(chunk_, bytes - offset);
        if (turn == self()) advance(mine + offset, n);
        if (turn < sent_.size()) return;
        sum.store(to + offset, n / unit);
        sum.clear();
        turn = 0;
        offset += n;
      }
    };
    settle();
    traffic.may_take = [&](size_t peer) { return peer == turn; };
    for (size_t peer = 0; peer < sent_.size() && bytes != 0; ++peer)
      if (peer != self())
        traffic.in[peer].push_back({bytes, [&](size_t, const char* data, size_t n) {
                                      advance(data, n);
                                      settle();
                                    }});
    move(traffic);
  }

  void exchange(const std::vector<Message>& messages) override {
    Traffic traffic(size_);
    for (const Message& message : messages) {
      if (message.is_send)
        traffic.send(message.peer, message.data, message.bytes);
      else
        traffic.receive(message.peer, message.data, message.bytes);
    }
    move(traffic);
  }

  uint64_t inbox(size_t sender, uint64_t number) const {
    return staging_ + (sender * kDepth + number % kDepth) * chunk_;
  }
  bool has_credit(size_t peer) const {
    return sent_[peer] < kDepth || test_ge(channel_, static_cast<int>(peer), credit_id_, sent_[peer] - kDepth + 1);
  }
  bool has_data(size_t peer) const { return test_ge(channel_, static_cast<int>(peer), data_id_, received_[peer] + 1); }
  bool can_send(const Traffic& traffic, size_t peer) const { return !traffic.out[peer].empty() && has_credit(peer); }
  bool can_take(const Traffic& traffic, size_t peer) const {
    return !traffic.in[peer].empty() && traffic.may_take(peer) && has_data(peer);
  }

  void send_chunk(Traffic& traffic, size_t peer) {
    const Outgoing message = traffic.out[peer].front();
    size_t& done = traffic.out_done[peer];
    const size_t bytes = std::min(chunk_, message.bytes - done);
    const int to = static_cast<int>(peer);
    // Several chunks are on their way and counted by one signal: a put_signal of a later one could be taken for an
    // earlier one, so each signal comes behind all puts before it.
    put(channel_, to, inbox(self(), sent_[peer]), message.data + done, bytes);
    fence(channel_, to);
    signal_add(channel_, to, data_id_);
    consume(channel_, to, credit_id_, 1);  // comes back when the chunk was taken
    ++sent_[peer];
    done += bytes;
    if (done < message.bytes) return;
    traffic.out[peer].pop_front();
    done = 0;
  }

  void take_chunk(Traffic& traffic, size_t peer) {
    Incoming& message = traffic.in[peer].front();
    size_t& done = traffic.in_done[peer];
    const size_t bytes = std::min(chunk_, message.bytes - done);
    const int from = static_cast<int>(peer);
    message.take(done, heap_of(channel_.team, team_.rank) + inbox(peer, received_[peer]), bytes);
    consume(channel_, from, data_id_, 1);
    signal_add(channel_, from, credit_id_);
    ++received_[peer];
    done += bytes;
    if (done < message.bytes) return;
    traffic.in[peer].pop_front();
    done = 0;
  }

  static char* heap_of(const TeamPod& pod, int rank) {
    return pod.heap_more == nullptr ? pod.heap[rank] : pod.heap_more[rank];
  }

  /// Until everything is sent and received and the sources may be reused.
  void move(Traffic& traffic) {
    const size_t size = sent_.size();
    while (true) {
      bool is_done = true;
      for (size_t i = 1; i < size; ++i) {
        const size_t to = (self() + i) % size;
        while (can_send(traffic, to)) send_chunk(traffic, to);
        is_done = is_done && traffic.out[to].empty();
      }
      for (size_t i = 1; i < size; ++i) {
        const size_t from = (self() + size - i) % size;
        while (can_take(traffic, from)) take_chunk(traffic, from);
        is_done = is_done && traffic.in[from].empty();
      }
      if (is_done) break;
      check(poll_until(channel_, site_of(traffic), [&] {
        for (size_t peer = 0; peer < size; ++peer)
          if (can_send(traffic, peer) || can_take(traffic, peer)) return true;
        return false;
      }));
    }
    check(flush(channel_));
  }

  /// What to name if the wait fails: the first rank that owes data, else the first that owes a credit.
  WaitSite site_of(const Traffic& traffic) const {
    WaitSite site{.kind = WaitKind::engine, .id = credit_id_};
    for (size_t peer = 0; peer < sent_.size(); ++peer) {
      const bool owes_data = !traffic.in[peer].empty() && traffic.may_take(peer);
      if (!owes_data && traffic.out[peer].empty()) continue;
      site.peer = static_cast<uint32_t>(peer);
      site.id = owes_data ? data_id_ : credit_id_;
      site.expected = owes_data ? received_[peer] + 1 : sent_[peer] - kDepth + 1;
      const TeamPod& pod = channel_.team;
      site.word = reinterpret_cast<uint64_t*>(heap_of(pod, pod.rank) + pod.sig_off +
                                              (uint64_t{site.id} * pod.sig_stride + peer) * pod.sig_pitch);
      if (owes_data) break;
    }
    return site;
  }

  void check(Errc code) const {
    if (code == Errc::ok) return;
    team_.runtime->enter();  // throws the first cause
    throw_error(code, "engine reference: a wait ended without a cause");
  }

  const ChannelPod channel_;
  const uint32_t data_id_, credit_id_;
  const uint64_t staging_;
  const size_t chunk_;
  const int size_;
  std::vector<uint64_t> sent_, received_;  // chunks by peer
};

}  // namespace

std::unique_ptr<NetEngine> make_reference_engine(Team& team, uint64_t& staging, uint64_t staging_end) {
  // Members may be in different other teams: the highest first free byte is free for all.
  for (const Bytes& entry : team.exchange(std::as_bytes(std::span(&staging, 1)))) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, entry.data(), std::min(entry.size(), sizeof theirs));
    staging = std::max(staging, theirs);
  }
  const uint64_t lanes = static_cast<uint64_t>(team.size()) * kDepth;
  // The world takes half, so that sub-teams find something.
  const uint64_t room = (staging_end - std::min(staging, staging_end)) / 2;
  const size_t chunk = std::min<size_t>(kMaxChunk, room / lanes / kMinChunk * kMinChunk);
  if (chunk == 0) return nullptr;
  TeamState& state = team.state();
  Channel& channel = make_channel(state, StreamRef::cpu(), {});
  state.engine_channel = &channel;
  const SignalIds ids = channel.ids(2, Domain::cpu, "engine.chunks");
  const uint64_t begin = staging;
  staging += lanes * chunk;
  return std::make_unique<ReferenceEngine>(state, channel.pod(), ids, begin, chunk);
}

}  // namespace overlace::runtime
