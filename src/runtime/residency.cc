#include "src/runtime/residency.h"

#include <algorithm>
#include <memory>

namespace overlace::runtime {

Residency::Lease::~Lease() {
  if (of_ != nullptr) of_->give_back(tenant_, sms_);
}

base::Result<Residency::Lease> Residency::take(const Tenant& tenant, const std::string& kernel, int sms) {
  const std::lock_guard lock(mutex_);
  const int others = held_by_all() - held_by(tenant.runtime);
  Leases& leases = tenants_[tenant];
  ++leases[sms];
  const int own = held_by(tenant.runtime);
  if (sms > 0 && own + others > sms_) {
    if (--leases[sms] == 0) leases.erase(sms);
    if (leases.empty()) tenants_.erase(tenant);
    return base::error(
        Errc::co_residency,
        "{}: needs {} SMs at once, of {} on this GPU, while kernels of other runtimes of this process need "
        "{} at once; give the runtimes SM budgets that fit together, or take a schedule without such a "
        "kernel",
        kernel, own, sms_, others);
  }
  Lease lease;
  lease.of_ = this, lease.tenant_ = tenant, lease.sms_ = sms;
  return lease;
}

bool Residency::is_alone(const Tenant& tenant) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(tenants_.begin(), tenants_.end(), [&](const auto& entry) { return entry.first == tenant; });
}

int Residency::held() const {
  const std::lock_guard lock(mutex_);
  return held_by_all();
}

int Residency::held_by(uint64_t runtime) const {
  int64_t sum = 0;
  int room = 0;
  for (const auto& [tenant, leases] : tenants_) {
    if (tenant.runtime != runtime || leases.empty()) continue;
    sum += leases.rbegin()->first;
    room = tenant.room;
  }
  return static_cast<int>(std::min<int64_t>(sum, room));
}

int Residency::held_by_all() const {
  int sum = 0;
  for (auto at = tenants_.begin(); at != tenants_.end();) {
    const uint64_t runtime = at->first.runtime;
    sum += held_by(runtime);
    while (at != tenants_.end() && at->first.runtime == runtime) ++at;
  }
  return sum;
}

void Residency::give_back(const Tenant& tenant, int sms) {
  const std::lock_guard lock(mutex_);
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return;
  if (const auto lease = at->second.find(sms); --lease->second == 0) at->second.erase(lease);
  if (at->second.empty()) tenants_.erase(at);
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
