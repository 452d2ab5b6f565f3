// Rows that one rank has and others need: sent to them, received from them.
#pragma once

#include <chrono>
#include <cstring>
#include <utility>

#include "overlace/runtime.h"
#include "overlace/signal.h"
#include "rows.h"

class Halo {
 public:
  /// By rank: what it owns, and what it needs. Collective.
  Halo(overlace::Runtime& runtime, overlace::Channel& channel, const char* name, int floats, std::vector<Part> owned,
       std::vector<Part> needed)
      : runtime_(runtime), channel_(channel), owned_(std::move(owned)), needed_(std::move(needed)) {
    row_bytes_ = static_cast<size_t>(floats) * sizeof(float);
    int most = 1;
    for (const Part& part : needed_) most = std::max(most, part.size());
    buffer_ = runtime.heap().alloc(row_bytes_ * static_cast<size_t>(most), 256, name);
    id_ = channel.ids(1, overlace::Domain::cpu, name).first;
    me_ = static_cast<size_t>(runtime.world().rank());
  }

  /// Whoever needs rows of mine gets them, each in one piece at its place. They must not change before done().
  void send(const Rows& mine) {
    for (size_t peer = 0; peer < owned_.size(); ++peer) {
      const Part part = peer == me_ ? Part{} : common(owned_[me_], needed_[peer]);
      if (part.size() == 0) continue;
      put_signal(channel_.pod(), static_cast<int>(peer), buffer_.offset + bytes(part.begin - needed_[peer].begin),
                 mine.at(part.begin), bytes(part.size()), id_);
    }
  }

  /// Waits for the rows of others and puts them among mine.
  void receive(Rows& mine) {
    const char* come = static_cast<const char*>(runtime_.world().local_ptr(buffer_));
    for (size_t peer = 0; peer < owned_.size(); ++peer) {
      const Part part = peer == me_ ? Part{} : common(owned_[peer], needed_[me_]);
      if (part.size() == 0) continue;
      const int sender = static_cast<int>(peer);
      const auto& pod = channel_.pod();
      const auto begin = std::chrono::steady_clock::now();
      if (wait_ge(pod, sender, id_, ticket(pod, sender, id_) + 1) != overlace::Errc::ok) runtime_.check();
      waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      consume(pod, sender, id_, 1);
      std::memcpy(mine.at(part.begin), come + bytes(part.begin - needed_[me_].begin), bytes(part.size()));
    }
  }

  /// For the rows of others, since the last call.
  double take_waited_s() { return std::exchange(waited_s_, 0.0); }

  /// All have received: rows may change, and the buffer is free again.
  void done() {
    if (flush(channel_.pod()) != overlace::Errc::ok) runtime_.check();
    runtime_.world().barrier();
  }

  /// Bytes of the longest piece that any rank sends to another one.
  static size_t longest(const std::vector<Part>& owned, const std::vector<Part>& needed, int floats) {
    int rows = 0;
    for (size_t from = 0; from < owned.size(); ++from)
      for (size_t to = 0; to < owned.size(); ++to)
        if (from != to) rows = std::max(rows, common(owned[from], needed[to]).size());
    return static_cast<size_t>(rows) * static_cast<size_t>(floats) * sizeof(float);
  }

 private:
  size_t bytes(int rows) const { return row_bytes_ * static_cast<size_t>(rows); }

  overlace::Runtime& runtime_;
  overlace::Channel& channel_;
  std::vector<Part> owned_, needed_;
  size_t row_bytes_ = 0, me_ = 0;
  double waited_s_ = 0;
  overlace::SymBuffer buffer_;
  uint32_t id_ = 0;
};
