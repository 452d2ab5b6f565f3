#include "src/runtime/backend/cpu/net.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/runtime/backend/cpu/net_packet.h"
#include "src/runtime/hash.h"
#include "src/runtime/wait.h"

namespace overlace::runtime {
namespace {

using net::kAnswer;
using net::kAsk;
using enum net::Word;

constexpr size_t kPiece = size_t{64} << 20;  // of a message

}  // namespace

Net::Net(CpuAgent& agent, mpi::Service& service, std::vector<int> ranks, const std::vector<int>& near)
    : agent_(agent),
      service_(service),
      context_(hash_text("puts", agent.control->generation())),
      ranks_(std::move(ranks)),
      is_far_(ranks_.size(), true),
      sent_(std::make_unique<std::atomic<uint64_t>[]>(ranks_.size())),
      arrived_(std::make_unique<std::atomic<uint64_t>[]>(ranks_.size())) {
  for (const int rank : near) is_far_[static_cast<size_t>(rank)] = false;
  service_.listen(context_, {.take = [this](int from, const mpi::Message& message) { take(from, message); },
                             .fail = [this](const base::Status& why) { fail(why); },
                             .sent = {}});
}

Net::~Net() { service_.forget(context_); }

void Net::send(int peer, const Payload& payload, size_t begin, size_t end, const Arrival& arrival) {
  for (; end - begin > kPiece; begin += kPiece) send(peer, payload, begin, begin + kPiece, {});
  const auto p = static_cast<size_t>(peer);
  const char* const base = agent_.bases[p];
  mpi::Head head;
  head.kind = static_cast<uint32_t>(arrival.kind);
  head.context = context_;
  std::vector<std::pair<const char*, size_t>> parts;
  if (begin < end) {
    head.words[offset] = static_cast<uint64_t>(payload.dst - base);
    head.words[pitch] = payload.dst_pitch;
    head.words[row_bytes] = payload.row_bytes;
    head.words[begin_byte] = begin;
    head.words[end_byte] = end;
    while (begin < end) {
      const size_t row = begin / payload.row_bytes, column = begin % payload.row_bytes;
      const size_t bytes = std::min(payload.row_bytes - column, end - begin);
      parts.emplace_back(payload.src + row * payload.src_pitch + column, bytes);
      begin += bytes;
    }
  }
  if (arrival.kind != Arrival::Kind::none) {
    head.words[target] = static_cast<uint64_t>(reinterpret_cast<const char*>(arrival.target) - base);
    head.words[value] = arrival.value;
    head.words[bell] = arrival.bell;
    head.words[id] = arrival.id;
  }
  sent_[p].fetch_add(1, std::memory_order_relaxed);
  service_.send(ranks_[p], head, parts, nullptr);
}

std::vector<uint64_t> Net::ask() {
  std::vector<uint64_t> asked(ranks_.size());
  for (size_t p = 0; p < ranks_.size(); ++p) {
    if (!is_far_[p]) continue;
    asked[p] = sent_[p].load(std::memory_order_relaxed);
    if (asked[p] == arrived_[p].load(std::memory_order_acquire)) continue;
    mpi::Head head;
    head.kind = kAsk;
    head.context = context_;
    head.words[number] = asked[p];
    service_.send(ranks_[p], head, {}, nullptr);
  }
  return asked;
}

int Net::first_missing(const std::vector<uint64_t>& asked) const {
  for (size_t p = 0; p < asked.size(); ++p)
    if (arrived_[p].load(std::memory_order_acquire) < asked[p]) return static_cast<int>(p);
  return 0;
}

bool Net::is_quiet(const std::vector<uint64_t>& asked) const {
  for (size_t p = 0; p < asked.size(); ++p)
    if (arrived_[p].load(std::memory_order_acquire) < asked[p]) return false;
  return true;
}

Errc wait_for_net(const ChannelPod& channel) {
  Net* const net = agent_of(channel).net.get();
  if (net == nullptr) return Errc::ok;
  const std::vector<uint64_t> asked = net->ask();
  const WaitSite site{.kind = WaitKind::stream, .peer = static_cast<uint32_t>(net->first_missing(asked))};
  return poll_until(channel, site, [&] { return net->is_quiet(asked); });
}

void Net::fail(const base::Status& why) {
  const AbortCause cause{why.code(), why.message()};
  agent_.abort(cause);
  agent_.control->spread(cause);
}

void Net::take(int from, const mpi::Message& message) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), from);
  const auto peer = static_cast<size_t>(found - ranks_.begin());
  base::Status status =
      found == ranks_.end()
          ? base::error(Errc::engine, "engine mpi: a message of a process that is none of the ranks")
          : net::check_claims(message, agent_.layout, agent_.heap_bytes.load(std::memory_order_acquire));
  if (status.ok() && message.head.kind == kAnswer) status = check_answer(peer, message.head.words[number]);
  // Nothing of it was written.
  if (!status.ok())
    return fail(
        {status.code(),
         base::format("rank {} refused what {} {} sent: {}", agent_.rank, found == ranks_.end() ? "MPI's rank" : "rank",
                      found == ranks_.end() ? static_cast<size_t>(from) : peer, status.message())});
  if (message.head.kind == kAsk) {
    // It came behind what it asks for.
    mpi::Head answer = message.head;
    answer.kind = kAnswer;
    service_.send(from, answer, {}, nullptr);
  } else if (message.head.kind == kAnswer) {
    // Threads that ask at the same time may be answered in another order; this thread alone writes.
    const uint64_t before = arrived_[peer].load(std::memory_order_relaxed);
    arrived_[peer].store(std::max(before, message.head.words[number]), std::memory_order_release);
    ring(agent_.bases[static_cast<size_t>(agent_.rank)], kAnyBell);
  } else {
    store(message);
  }
}

base::Status Net::check_answer(size_t peer, uint64_t said) const {
  const uint64_t sent = sent_[peer].load(std::memory_order_relaxed);
  if (said <= sent) return {};
  return base::error(Errc::engine, "engine mpi: it says that {} messages have arrived, wanted at most the {} sent",
                     said, sent);
}

void Net::store(const mpi::Message& message) {
  char* const own = agent_.bases[static_cast<size_t>(agent_.rank)];
  const auto& w = message.head.words;
  net::store_payload(message, own);
  const auto kind = static_cast<Arrival::Kind>(message.head.kind);
  if (kind == Arrival::Kind::none) return;
  apply({kind, reinterpret_cast<uint64_t*>(own + w[target]), w[value], static_cast<uint32_t>(w[bell]),
         static_cast<uint32_t>(w[id])},
        own);
}

}  // namespace overlace::runtime
