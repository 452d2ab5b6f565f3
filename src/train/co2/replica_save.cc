// A replica as bytes: header, state, buffers, checksum.
#include <algorithm>
#include <cstring>

#include "src/runtime/clock.h"
#include "src/runtime/hash.h"
#include "src/train/co2/replica.h"

namespace overlace::train {
namespace {

using base::error;
using base::Status;

constexpr char kMagic[8] = {'O', 'V', 'L', 'C', 'O', '2', '\n', '\0'};
constexpr uint64_t kVersion = 3;

struct Front {
  char magic[8];
  uint64_t version = kVersion, bytes = 0, config = 0, groups = 0;
};

class Writer {
 public:
  void put(const void* data, size_t bytes) { text.append(static_cast<const char*>(data), bytes); }
  template <class T>
  void value(const T& value) {
    put(&value, sizeof value);
  }
  template <class T>
  void array(const std::vector<T>& values) {
    put(values.data(), values.size() * sizeof(T));
  }
  std::string text;
};

/// The length was checked before.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  void get(void* data, size_t bytes) {
    OVERLACE_ASSERT(bytes <= text_.size() - at_);
    if (bytes > 0) std::memcpy(data, text_.data() + at_, bytes);
    at_ += bytes;
  }
  template <class T>
  void value(T& value) {
    get(&value, sizeof value);
  }
  template <class T>
  void array(std::vector<T>& values) {
    get(values.data(), values.size() * sizeof(T));
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string Replica::save() {
  if (engine_.next().kind != Action::Kind::none)
    throw_error(Errc::invalid_argument, "save: a boundary has failed half way, wanted: between inner steps");
  if (device_) take_reports();
  settle();
  if (device_ == nullptr) return dump();
  hold_image();
  device_->download(image());
  std::string saved = dump();
  drop_image();
  return saved;
}

std::string Replica::dump() const {
  Writer out;
  Front front;
  std::memcpy(front.magic, kMagic, sizeof kMagic);
  front.config = own_hash_;
  front.groups = static_cast<uint64_t>(outer_.size());
  out.value(front);
  out.value(engine_.state());
  out.value(control_);
  out.value(own_header_);
  out.value(*header_);
  out.value(lr_sum_);
  out.value(last_mean_lr_);
  out.value(lr_steps_);
  if (is_weighted()) out.value(all_samples_);
  out.array(bounds_);
  out.array(sums_);
  out.array(anchor_);
  out.array(momentum_);
  out.array(kept_);
  out.array(residual_);
  out.array(wire_);
  if (device_) out.array(image_);
  for (const Parameter& p : parameters_)
    if (device_ == nullptr) out.put(p.data, static_cast<size_t>(p.count) * dtype_bytes(p.dtype));
  front.bytes = out.text.size() + sizeof(uint64_t);
  std::memcpy(out.text.data(), &front, sizeof front);
  out.value(runtime::hash_text(out.text));
  return std::move(out.text);
}

Status Replica::load(std::string_view bytes) {
  Front front;
  if (bytes.size() < sizeof front)
    return error(Errc::corrupt, "checkpoint of CO2: {} bytes, wanted: at least {}", bytes.size(), sizeof front);
  std::memcpy(&front, bytes.data(), sizeof front);
  if (std::memcmp(front.magic, kMagic, sizeof kMagic) != 0)
    return error(Errc::corrupt, "checkpoint of CO2: it does not begin as one");
  if (front.version != kVersion)
    return error(Errc::version_mismatch, "checkpoint of CO2: version {}, wanted: {}", front.version, kVersion);
  if (front.bytes != bytes.size())
    return error(Errc::corrupt, "checkpoint of CO2: {} bytes, wanted: {}", bytes.size(), front.bytes);
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + body.size(), sizeof hash);
  if (hash != runtime::hash_text(body))
    return error(Errc::corrupt, "checkpoint of CO2: its checksum is {}, wanted: {}", runtime::hash_text(body), hash);
  if (front.groups != static_cast<uint64_t>(outer_.size()))
    return error(Errc::stale, "checkpoint of CO2: of {} groups, wanted: {}", front.groups, outer_.size());
  hold_image();
  const size_t wanted = dump().size();
  drop_image();
  if (front.config != own_hash_ || front.bytes != wanted)
    return error(Errc::stale, "checkpoint of CO2: of a run with other options or parameters (hash {}), wanted: {}",
                 front.config, own_hash_);
  if (device_) take_reports();
  settle();  // a round that is under way would write into what is loaded
  hold_image();
  Reader in(bytes);
  EngineState state;
  in.value(front);
  in.value(state);
  if (Status taken = engine_.load(state); !taken.ok()) {
    drop_image();
    return taken;
  }
  in.value(control_);
  in.value(own_header_);
  in.value(*header_);
  in.value(lr_sum_);
  in.value(last_mean_lr_);
  in.value(lr_steps_);
  if (is_weighted()) in.value(all_samples_);
  in.array(bounds_);
  in.array(sums_);
  in.array(anchor_);
  in.array(momentum_);
  in.array(kept_);
  in.array(residual_);
  in.array(wire_);
  if (device_) {
    in.array(image_);
    device_->upload(image());
    drop_image();
  } else {
    for (const Parameter& p : parameters_) in.get(p.data, static_cast<size_t>(p.count) * dtype_bytes(p.dtype));
  }
  std::fill(tickets_.begin(), tickets_.end(), 0);
  failure_ = {};
  current_ = {};
  first_launch_ns_ = last_complete_ns_ = 0;
  rounds_.restart(runtime::now_ns());
  ++writes_;
  return Status::success();
}

}  // namespace overlace::train
