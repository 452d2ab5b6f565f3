// Who launches kernels that wait for peers on a GPU of this process, over all its runtimes; arithmetic, without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "src/base/status.h"

namespace overlace::runtime {

/// One per GPU of the process. A channel takes a lease for each program with such a kernel; what it holds is the most
/// that one of them needs, as its calls come one after the other. Channels of one runtime wait for each other where
/// they do not fit into its room (call_order.h), so a runtime holds at most that. Nobody orders the calls of different
/// runtimes: what these hold must fit together. Any thread.
class Residency {
 public:
  struct Tenant {
    uint64_t runtime = 0;  // one of this process
    uint32_t channel = 0;  // of it
    int room = 0;          // SMs that the channels of this runtime share
    auto operator<=>(const Tenant&) const = default;
  };

  /// Gives its SMs back at its end.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : of_(std::exchange(other.of_, nullptr)), tenant_(other.tenant_), sms_(other.sms_) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(of_, other.of_), std::swap(tenant_, other.tenant_), std::swap(sms_, other.sms_);
      return *this;
    }
    ~Lease();

   private:
    friend class Residency;
    Residency* of_ = nullptr;
    Tenant tenant_{};
    int sms_ = 0;
  };

  explicit Residency(int sms) : sms_(sms) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// `sms`: SMs whose CTAs `kernel` needs all at once; 0: any one CTA comes to the end. co_residency, with what is
  /// needed, what other runtimes hold and what there is, where that is more than the GPU has.
  base::Result<Lease> take(const Tenant& tenant, const std::string& kernel, int sms);
  /// No other channel has a lease, of whatever runtime: CTAs that are set up early take nobody's place.
  bool is_alone(const Tenant& tenant) const;
  /// SMs that all of them may need at once.
  int held() const;

  /// That of a device of this process, which has `sms` SMs; lives as long as the process.
  static Residency& of_device(int device, int sms);

 private:
  using Leases = std::map<int, size_t>;  // SMs -> how many leases of so many
  int held_by(uint64_t runtime) const;
  int held_by_all() const;
  void give_back(const Tenant& tenant, int sms);

  const int sms_;
  mutable std::mutex mutex_;
  std::map<Tenant, Leases> tenants_;
};

}  // namespace overlace::runtime
