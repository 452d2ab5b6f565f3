// What the CPU twins of signals and waits need to know of their rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "overlace/handle_pod.h"
#include "overlace/runtime.h"
#include "src/runtime/call_board.h"
#include "src/runtime/control.h"
#include "src/runtime/names.h"
#include "src/spec/layout_pod.h"

namespace overlace::runtime {

class Net;
class Observer;
class Wire;

inline constexpr int kMaxRanks = 1024;
inline constexpr uint32_t kBells = 16;        // by signal id
inline constexpr uint32_t kAnyBell = kBells;  // rung by everything

/// Counts wakes; waiters sleep on it as a futex.
struct Doorbell {
  alignas(64) uint32_t rings;
  uint32_t waiters;
};

/// Second page of a rank's heap. Zero at start.
struct CpuControl {
  alignas(64) uint32_t waiters;  // of all bells: what a writer looks at first
  Doorbell bells[kBells + 1];
  alignas(64) uint32_t host_waiting;             // the first rank's: threads of all ranks that wait now
  alignas(64) uint64_t link_busy_ns[kMaxRanks];  // by destination: when the emulated link becomes free
  CallBoard calls;
};
inline constexpr uint64_t kCpuControlOffset = 4096;
static_assert(kCpuControlOffset + sizeof(CpuControl) <= kControlBytes);

inline ControlBlock& control_block(char* base) { return *reinterpret_cast<ControlBlock*>(base); }
inline CpuControl& cpu_control(char* base) { return *reinterpret_cast<CpuControl*>(base + kCpuControlOffset); }

/// Wakes whoever sleeps on this bell or on the one for everything. After the store that they wait for (seq_cst).
void ring(char* base, uint32_t bell);

struct CpuAgent {
  CpuAgent();
  ~CpuAgent();

  int rank = 0, world = 0;
  int cores = 1;
  WaitPolicy wait = WaitPolicy::automatic;
  uint64_t timeout_ns = 0, fork_count = 0;
  std::atomic<int32_t> waits_for{-1};  // rank of the team that a wait which is not short is for; -1: none. To be told.
  RuntimeLayout layout;
  std::atomic<uint64_t> heap_bytes = 0;  // that have memory; grows
  std::vector<char*> bases;        // of all ranks' heaps, in this address space; empty reservations for other hosts
  std::vector<int> first_of_host;  // by rank: whose heap has the words that all ranks of its host share
  Control* control = nullptr;
  const Names* names = nullptr;
  std::unique_ptr<Net> net;             // null: all ranks are on this host
  std::unique_ptr<Wire> wire;           // null: puts are stores, or go to `net` at once
  std::vector<uint64_t> sent, tickets;  // id * world + rank
  std::atomic<uint64_t> fence_word{0};
  std::atomic<Observer*> observer{nullptr};
  std::atomic<bool> is_claimed{false};  // a TimeoutRecord has an author
  TimeoutRecord record;
  std::function<std::string()> more_of_timeout;  // goes behind the record's text; set while nobody waits

  uint32_t& abort_word() { return control_block(bases[static_cast<size_t>(rank)]).abort_word; }
  /// First cause stays. Wakes all waiters of this rank and stops its wire. Any thread.
  void abort(const AbortCause& cause);
  AbortCause cause() const;

 private:
  mutable std::mutex mutex_;
  AbortCause cause_;
};

inline CpuAgent& agent_of(const ChannelPod& channel) { return *static_cast<CpuAgent*>(channel.team.agent); }
inline char* heap_of(const TeamPod& team, int peer) {
  return team.heap_more == nullptr ? team.heap[peer] : team.heap_more[peer];
}
inline char* own_heap(const TeamPod& team) { return heap_of(team, team.rank); }

}  // namespace overlace::runtime
