#include "src/runtime/residency.h"

#include <algorithm>
#include <memory>

namespace overlace::runtime {
namespace {

/// SMs that are left to who finds no other: more than a Hopper GPU has clusters of SMs (GPCs, 8), so that two of them
/// lie in one, as a cluster of two CTAs wants.
constexpr int kLeft = 10, kCluster = 2;

}  // namespace

size_t calls_to_wait_for(std::span<const LiveCall> live, int sms, int room) {
  int64_t taken = sms;
  size_t first = live.size();
  while (first > 0 && taken + live[first - 1].sms <= room) taken += live[--first].sms;
  return first;
}

Residency::Lease::~Lease() {
  if (of_ != nullptr) of_->give_back(tenant_);
}

Residency::Lease Residency::take(const Tenant& tenant) {
  const std::lock_guard lock(mutex_);
  ++leases_[tenant];
  Lease lease;
  lease.of_ = this, lease.tenant_ = tenant;
  return lease;
}

bool Residency::is_alone(const Tenant& tenant) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(leases_.begin(), leases_.end(), [&](const auto& entry) { return entry.first == tenant; });
}

/// With n runtimes whose kernels fill at most (sms - kLeft) / (n - 1) each, whoever comes last finds kLeft.
int Residency::most_sms(const Tenant& tenant) const {
  const std::lock_guard lock(mutex_);
  std::map<uint64_t, int> others;  // SMs that a runtime fills at most
  int own = tenant.sms;
  for (const auto& [other, count] : leases_) {
    if (other == tenant) continue;
    int& sms = other.runtime == tenant.runtime ? own : others[other.runtime];
    sms = std::min(sms + other.sms, other.room);
  }
  int all = own;
  for (const auto& [runtime, sms] : others) all += sms;
  if (others.empty() || all <= sms_) return tenant.sms;
  const int most = (sms_ - kLeft) / static_cast<int>(others.size());
  // Channels of one runtime that run side by side share what it may fill.
  return own <= most ? tenant.sms : std::min(tenant.sms, std::max(kCluster, tenant.sms * most / own));
}

void Residency::give_back(const Tenant& tenant) {
  const std::lock_guard lock(mutex_);
  const auto at = leases_.find(tenant);
  if (at != leases_.end() && --at->second == 0) leases_.erase(at);
}

Residency& Residency::of_device(int device, int sms) {
  static std::mutex* const mutex = new std::mutex;  // outlive exit handlers
  static auto* const all = new std::map<int, std::unique_ptr<Residency>>;
  const std::lock_guard lock(*mutex);
  std::unique_ptr<Residency>& found = (*all)[device];
  if (found == nullptr) found = std::make_unique<Residency>(sms);
  return *found;
}

}  // namespace overlace::runtime
