// Who fills which SMs of a GPU of this process: calls of one runtime, and kernels that wait for peers over all of them;
// arithmetic, without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

namespace overlace::runtime {

/// A call of another channel that has not ended yet, as far as is known.
struct LiveCall {
  uint32_t channel = 0;
  int sms = 0;
};

/// SMs that a call may fill: its budget, or all there are.
constexpr int sms_of(int budget, int room) { return budget == 0 ? room : budget; }

/// How many of `live` (oldest first, at most one per channel) must end before a call of `sms` SMs starts, so that those
/// that go on fit beside it. Calls only wait for earlier ones, and all ranks make theirs in the same order: no cycle.
size_t calls_to_wait_for(std::span<const LiveCall> live, int sms, int room);

/// One per GPU of the process. A channel takes a lease for each program with such a kernel. Any resident CTA of these
/// kernels brings it to its end, but nobody orders the calls of different runtimes: on one rank the kernel of one may
/// hold all SMs while it waits, on another rank that of the other, and then neither peer starts. So where their kernels
/// do not fit on the GPU together, each leaves room for a CTA of the others. Channels of one runtime wait for each
/// other (calls_to_wait_for). Any thread.
class Residency {
 public:
  struct Tenant {
    uint64_t runtime = 0;  // one of this process
    uint32_t channel = 0;  // of it
    int sms = 0;           // that kernels of this channel fill
    int room = 0;          // SMs that the channels of this runtime share
    auto operator<=>(const Tenant&) const = default;
  };

  /// Gives its place back at its end.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : of_(std::exchange(other.of_, nullptr)), tenant_(other.tenant_) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(of_, other.of_), std::swap(tenant_, other.tenant_);
      return *this;
    }
    ~Lease();

   private:
    friend class Residency;
    Residency* of_ = nullptr;
    Tenant tenant_{};
  };

  explicit Residency(int sms) : sms_(sms) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  Lease take(const Tenant& tenant);
  /// No other channel has a lease, of whatever runtime: CTAs that are set up early take nobody's place.
  bool is_alone(const Tenant& tenant) const;
  /// SMs that a kernel of this channel may fill now. Less than `tenant.sms` where kernels of several runtimes do not
  /// fit on the GPU together. At least 2, a cluster.
  int most_sms(const Tenant& tenant) const;

  /// That of a device of this process, which has `sms` SMs; lives as long as the process.
  static Residency& of_device(int device, int sms);

 private:
  void give_back(const Tenant& tenant);

  const int sms_;
  mutable std::mutex mutex_;
  std::map<Tenant, size_t> leases_;
};

}  // namespace overlace::runtime
