#include "src/train/co2/cuda/state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "src/base/status.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/clock.h"
#include "src/train/co2/cuda/pass.h"

namespace overlace::train {
namespace {

using runtime::now_ns;
using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::DeviceGuard;

void check(cudaError_t code, const char* call) { cuda_status(code, call).or_throw(); }

/// Memory of the device that is current.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<size_t>(bytes, 16)), "cudaMalloc");
  }
  ~DeviceMemory() {
    if (!is_left_) (void)cudaFree(data_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  void leave() { is_left_ = true; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_left_, other.is_left_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool is_left_ = false;
};

class CudaState final : public DeviceState {
 public:
  explicit CudaState(const DeviceStateOptions& options)
      : device_(options.device),
        tensors_(options.tensors),
        buckets_(options.buckets),
        plan_(cuda_pieces(options.tensors, options.buckets)),
        stream_(static_cast<cudaStream_t>(options.stream)) {
    const DeviceGuard guard(device_);
    load_kernels().or_throw();
    check_memory();
    int64_t total = 0;
    for (const PassTensor& tensor : tensors_) total += tensor.count;
    const auto floats = [total](bool is_there) {
      return is_there ? DeviceMemory(static_cast<size_t>(total) * sizeof(float)) : DeviceMemory();
    };
    anchor_ = floats(true);
    momentum_ = floats(options.has_momentum);
    kept_ = floats(options.has_kept);
    residual_ = floats(options.has_residual);
    wire_ = DeviceMemory(static_cast<size_t>(total) * dtype_bytes(options.wire_dtype));
    control_ = DeviceMemory(sizeof(ControlPod));
    headers_ = DeviceMemory(2 * sizeof(HeaderPod));
    hash_ = DeviceMemory((tensors_.size() + 1) * sizeof(uint64_t));
    bounds_ = DeviceMemory(options.bounds.size() * sizeof(TensorPod));
    sums_ = DeviceMemory(tensors_.size() * sizeof(SumsPod));
    parts_ = DeviceMemory(plan_.pieces.size() * sizeof(SumsPod));
    facts_ = DeviceMemory(kReports * sizeof(FactsPod));
    void* pinned = nullptr;
    check(cudaHostAlloc(&pinned, kReports * sizeof(FactsPod), cudaHostAllocDefault), "cudaHostAlloc");
    seen_ = static_cast<FactsPod*>(pinned);
    const ControlPod control;
    put(control_, &control, sizeof control);
    put(bounds_, options.bounds.data(), bounds_.bytes());
    table_ = DeviceMemory(tensors_.size() * sizeof(PassTensor));
    put(table_, tensors_.data(), table_.bytes());
    pieces_ = DeviceMemory(plan_.pieces.size() * sizeof(CudaPiece));
    put(pieces_, plan_.pieces.data(), pieces_.bytes());
    of_tensor_ = DeviceMemory(tensors_.size() * sizeof(CudaRun));
    put(of_tensor_, plan_.of_tensor.data(), of_tensor_.bytes());
    for (const DeviceMemory* memory : {&anchor_, &momentum_, &kept_, &residual_, &wire_, &headers_, &sums_, &parts_})
      zero(*memory);
    arrays_ = {.control = control_.as<ControlPod>(),
               .tensors = table_.as<PassTensor>(),
               .bounds = bounds_.as<TensorPod>(),
               .sums = sums_.as<SumsPod>(),
               .of_tensor = of_tensor_.as<CudaRun>(),
               .num_tensors = static_cast<int64_t>(tensors_.size()),
               .pieces = pieces_.as<CudaPiece>(),
               .parts = parts_.as<SumsPod>(),
               .own = headers_.as<HeaderPod>(),
               .sum = headers_.as<HeaderPod>() + 1,
               .memory = {.anchor = anchor_.as<float>(),
                          .momentum = momentum_.as<float>(),
                          .kept = kept_.as<float>(),
                          .wire = wire_.as<void>(),
                          .wire_dtype = options.wire_dtype,
                          // What travels as int8 is rounded by the transport.
                          .residual = options.wire_dtype == DType::bf16 ? residual_.as<float>() : nullptr}};
    check(cudaEventCreateWithFlags(&moved_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventCreateWithFlags(&base_, cudaEventDefault), "cudaEventCreate");
    check(cudaEventRecord(base_, stream_), "cudaEventRecord");
    wait_for_stream();
    base_ns_ = now_ns();
  }

  ~CudaState() override {
    const DeviceGuard guard(device_);
    try {
      if (!is_left_) wait_for_stream(kEndMs);  // of which no wait is for ever: AsyncCollective ends it
    } catch (const std::exception&) {          // the device is lost, or hangs
      leave_memory();
    }
    for (const Mark& mark : marks_) (void)cudaEventDestroy(mark.event);
    for (const Report& report : reports_)
      for (const Mark& mark : report.marks) (void)cudaEventDestroy(mark.event);
    for (const cudaEvent_t event : spare_) (void)cudaEventDestroy(event);
    for (const cudaEvent_t event : {moved_, base_})
      if (event != nullptr) (void)cudaEventDestroy(event);
    if (!is_left_) (void)cudaFreeHost(seen_);
    (void)cudaGetLastError();
  }

  void use(void* stream) override {
    auto* const next = static_cast<cudaStream_t>(stream);
    if (next == stream_) return;
    const DeviceGuard guard(device_);
    check(cudaEventRecord(moved_, stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(next, moved_, 0), "cudaStreamWaitEvent");
    stream_ = next;
  }
  StreamRef stream() const override { return StreamRef::cuda(stream_); }
  char* wire() override { return wire_.as<char>(); }
  float* residual() override { return residual_.as<float>(); }
  HeaderPod* sum() override { return arrays_.sum; }

  void reset_anchor() override {
    const DeviceGuard guard(device_);
    for (const DeviceMemory* memory : {&momentum_, &kept_}) zero(*memory);
    for_each_run([&](const CudaRun& run) { return queue_to_anchor(arrays_, run, stream_); });
  }
  void begin(const KnobsPod& knobs, bool has_incoming) override {
    const DeviceGuard guard(device_);
    queue_begin(arrays_, knobs, has_incoming, stream_).or_throw();
  }
  void pass(PassMode mode, float groups, int bucket) override {
    const DeviceGuard guard(device_);
    const BucketRange& range = buckets_[static_cast<size_t>(bucket)];
    const auto first = static_cast<int64_t>(range.first), end = first + static_cast<int64_t>(range.tensors);
    // Sums are added up once for passes of one mode over neighbours.
    if (first_passed_ < end_passed_ && (mode != passed_ || first != end_passed_)) add_sums();
    if (first_passed_ == end_passed_) first_passed_ = first;
    end_passed_ = end;
    passed_ = mode;
    for (const CudaRun& run : plan_.of_bucket[static_cast<size_t>(bucket)])
      queue_pass(arrays_, mode, groups, run, stream_).or_throw();
  }
  void reduce_sums(const std::function<void(std::span<double>)>& reduce, int64_t timeout_ms) override {
    static_assert(sizeof(SumsPod) == 5 * sizeof(double));
    const DeviceGuard guard(device_);
    add_sums();
    std::vector<double> flat(tensors_.size() * 5);
    get(sums_, flat.data(), sums_.bytes(), timeout_ms);
    reduce(flat);
    put(sums_, flat.data(), sums_.bytes());
  }
  void end(const KnobsPod& knobs) override {
    const DeviceGuard guard(device_);
    queue_end(arrays_, knobs, stream_).or_throw();
  }
  void header(const HeaderPod& base, bool compares_anchor) override {
    const DeviceGuard guard(device_);
    add_sums();
    queue_header(arrays_, base, compares_anchor ? queue_anchor_hash() : nullptr, stream_).or_throw();
  }
  void restore_if_dropped() override {
    const DeviceGuard guard(device_);
    for_each_run([&](const CudaRun& run) { return queue_restore(arrays_, run, stream_); });
  }
  void forget_sums() override {
    const DeviceGuard guard(device_);
    add_sums();
    zero(sums_);
  }

  void mark(DeviceSpan::Kind kind) override {
    const DeviceGuard guard(device_);
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
      check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate");
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    marks_.push_back({kind, event});
    check(cudaEventRecord(event, stream_), "cudaEventRecord");
  }
  void report() override {
    const DeviceGuard guard(device_);
    OVERLACE_ASSERT(reports_.size() < kReports);
    add_sums();
    const size_t slot = num_reports_++ % kReports;
    FactsPod* const facts = facts_.as<FactsPod>() + slot;
    queue_facts(arrays_, facts, stream_).or_throw();
    check(cudaMemcpyAsync(seen_ + slot, facts, sizeof(FactsPod), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    mark(DeviceSpan::Kind::other);
    reports_.push_back({slot, std::exchange(marks_, {})});
  }
  DeviceReport take_report() override {
    const DeviceGuard guard(device_);
    OVERLACE_ASSERT(!reports_.empty());
    const Report& oldest = reports_.front();
    wait([event = oldest.marks.back().event] { return cudaEventQuery(event); }, kTimeoutMs);
    DeviceReport taken;
    taken.facts = seen_[oldest.slot];
    int64_t before_ns = 0;
    for (const Mark& mark : oldest.marks) {
      float since_ms = 0;  // from mark to mark: of a long time it would have few digits
      check(cudaEventElapsedTime(&since_ms, base_, mark.event), "cudaEventElapsedTime");
      base_ns_ += static_cast<int64_t>(static_cast<double>(since_ms) * 1e6);
      taken.spans.push_back({mark.kind, before_ns == 0 ? base_ns_ : before_ns, base_ns_});
      before_ns = base_ns_;
      spare_.push_back(std::exchange(base_, mark.event));
    }
    reports_.pop_front();
    return taken;
  }

  double* upload_words(std::span<const double> words) override {
    const DeviceGuard guard(device_);
    if (words_.bytes() < words.size_bytes()) words_ = DeviceMemory(words.size_bytes());
    put(words_, words.data(), words.size_bytes());
    return words_.as<double>();
  }
  void download_words(std::span<double> words) override {
    const DeviceGuard guard(device_);
    get(words_, words.data(), words.size_bytes());
  }
  std::vector<uint64_t> hashes() override {
    const DeviceGuard guard(device_);
    zero(hash_);
    for (size_t t = 0; t < tensors_.size(); ++t)
      queue_hash(tensors_[t].x, static_cast<int>(dtype_bytes(tensors_[t].dtype)), tensors_[t].count, 0,
                 hash_.as<uint64_t>() + t, stream_)
          .or_throw();
    std::vector<uint64_t> all(tensors_.size());
    get(hash_, all.data(), all.size() * sizeof(uint64_t));
    return all;
  }
  uint64_t anchor_hash() override {
    const DeviceGuard guard(device_);
    (void)queue_anchor_hash();
    std::vector<uint64_t> all(tensors_.size() + 1);
    get(hash_, all.data(), all.size() * sizeof(uint64_t));
    return all.back();
  }
  void read_anchor(std::span<float> anchor) override {
    const DeviceGuard guard(device_);
    get(anchor_, anchor.data(), anchor.size_bytes());
  }

  void download(const StateImage& image) override {
    const DeviceGuard guard(device_);
    add_sums();
    get(control_, &image.control, sizeof(ControlPod));
    HeaderPod headers[2];
    get(headers_, headers, sizeof headers);
    image.own = headers[0];
    image.sum = headers[1];
    each_array(image,
               [this](const DeviceMemory& memory, auto values) { get(memory, values.data(), values.size_bytes()); });
    size_t at = 0;
    for (const PassTensor& tensor : tensors_) {
      const size_t bytes = static_cast<size_t>(tensor.count) * dtype_bytes(tensor.dtype);
      copy(image.parameters.data() + at, tensor.x, bytes, cudaMemcpyDeviceToHost);
      at += bytes;
    }
    wait_for_stream();
  }
  void upload(const StateImage& image) override {
    const DeviceGuard guard(device_);
    first_passed_ = end_passed_ = 0;
    put(control_, &image.control, sizeof(ControlPod));
    const HeaderPod headers[2] = {image.own, image.sum};
    put(headers_, headers, sizeof headers);
    each_array(image,
               [this](const DeviceMemory& memory, auto values) { put(memory, values.data(), values.size_bytes()); });
    size_t at = 0;
    for (const PassTensor& tensor : tensors_) {
      const size_t bytes = static_cast<size_t>(tensor.count) * dtype_bytes(tensor.dtype);
      copy(tensor.x, image.parameters.data() + at, bytes, cudaMemcpyHostToDevice);
      at += bytes;
    }
    wait_for_stream();
  }
  void leave_memory() override {
    is_left_ = true;
    for (DeviceMemory* memory : {&anchor_, &momentum_, &kept_, &residual_, &wire_, &control_, &headers_, &hash_,
                                 &bounds_, &sums_, &parts_, &facts_, &table_, &pieces_, &of_tensor_, &words_})
      memory->leave();
  }

 private:
  static constexpr size_t kReports = 4;  // a boundary and a flush behind it, before the host looks
  struct Mark {
    DeviceSpan::Kind kind;
    cudaEvent_t event;
  };
  struct Report {
    size_t slot;
    std::vector<Mark> marks;
  };

  void check_memory() const {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].count == 0) continue;
      cudaPointerAttributes found{};
      check(cudaPointerGetAttributes(&found, tensors_[t].x), "cudaPointerGetAttributes");
      if (found.type != cudaMemoryTypeDevice || found.device != device_)
        throw_error(Errc::invalid_argument,
                    base::format("parameters[{}] is not memory of GPU {}, wanted: of that device", t, device_));
    }
  }

  template <class Body>
  void each_array(const StateImage& image, const Body& body) {
    body(bounds_, image.bounds);
    body(sums_, image.sums);
    body(anchor_, image.anchor);
    body(momentum_, image.momentum);
    body(kept_, image.kept);
    body(residual_, image.residual);
    body(wire_, image.wire);
  }
  template <class Queue>
  void for_each_run(const Queue& queue) {
    for (const std::vector<CudaRun>& runs : plan_.of_bucket)
      for (const CudaRun& run : runs) queue(run).or_throw();
  }
  void add_sums() {
    if (first_passed_ < end_passed_)
      queue_sums(arrays_, passed_, first_passed_, end_passed_ - first_passed_, stream_).or_throw();
    first_passed_ = end_passed_ = 0;
  }
  const uint64_t* queue_anchor_hash() {
    uint64_t* const hash = hash_.as<uint64_t>() + tensors_.size();
    check(cudaMemsetAsync(hash, 0, sizeof *hash, stream_), "cudaMemsetAsync");
    const auto count = static_cast<int64_t>(anchor_.bytes() / sizeof(float));
    queue_hash(anchor_.as<void>(), 4, count, 0, hash, stream_).or_throw();
    queue_hash(momentum_.as<void>(), 4, momentum_.as<void>() == nullptr ? 0 : count, count, hash, stream_).or_throw();
    return hash;
  }

  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  }
  void zero(const DeviceMemory& memory) {
    if (memory.bytes() > 0) check(cudaMemsetAsync(memory.as<void>(), 0, memory.bytes(), stream_), "cudaMemsetAsync");
  }
  /// Waits, as the host's memory is any.
  void put(const DeviceMemory& to, const void* from, size_t bytes) {
    copy(to.as<void>(), from, bytes, cudaMemcpyHostToDevice);
    wait_for_stream();
  }
  void get(const DeviceMemory& from, void* to, size_t bytes, int64_t timeout_ms = kTimeoutMs) {
    wait_for_stream(timeout_ms);
    copy(to, from.as<void>(), bytes, cudaMemcpyDeviceToHost);
    wait_for_stream(timeout_ms);
  }

  /// What is queued ends by itself, waits for other groups by their own deadlines: this is for a device that hangs.
  static constexpr int64_t kTimeoutMs = 3'600'000, kEndMs = 60'000;
  void wait_for_stream(int64_t timeout_ms = kTimeoutMs) {
    wait([this] { return cudaStreamQuery(stream_); }, timeout_ms);
  }
  template <class Query>
  void wait(const Query& query, int64_t timeout_ms) {
    const int64_t end_ns = now_ns() + timeout_ms * 1'000'000;
    for (int looks = 0;; ++looks) {
      const cudaError_t code = query();
      if (code == cudaSuccess) return;
      if (code != cudaErrorNotReady) check(code, "a boundary of CO2");
      if (now_ns() > end_ns)
        throw_error(Errc::timeout, base::format("the stream of GPU {} has not come to the end of a boundary of CO2 "
                                                "after {} ms",
                                                device_, timeout_ms));
      if (looks > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  const int device_;
  const std::vector<PassTensor> tensors_;
  const std::vector<BucketRange> buckets_;
  const CudaPieces plan_;
  cudaStream_t stream_;
  DeviceMemory anchor_, momentum_, kept_, residual_, wire_, control_, headers_, hash_, bounds_, sums_, parts_, facts_;
  DeviceMemory table_, pieces_, of_tensor_, words_;
  CudaArrays arrays_;
  FactsPod* seen_ = nullptr;  // pinned, a slot for each of facts_
  PassMode passed_ = PassMode::fused;
  int64_t first_passed_ = 0, end_passed_ = 0;  // tensors whose sums are still in parts
  std::vector<Mark> marks_;
  std::deque<Report> reports_;
  size_t num_reports_ = 0;
  std::vector<cudaEvent_t> spare_;
  cudaEvent_t moved_ = nullptr, base_ = nullptr;
  int64_t base_ns_ = 0;   // when base_ was: the last mark of the last report
  bool is_left_ = false;  // memory, to the process
};

}  // namespace

CudaPieces cuda_pieces(std::span<const PassTensor> tensors, std::span<const BucketRange> buckets, int64_t of_piece) {
  CudaPieces all;
  all.of_tensor.resize(tensors.size());
  for (const BucketRange& bucket : buckets) {
    std::vector<CudaRun>& runs = all.of_bucket.emplace_back();
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      CudaRun run{dtype, static_cast<int64_t>(all.pieces.size()), 0};
      for (size_t t = bucket.first; t < bucket.first + bucket.tensors; ++t) {
        if (tensors[t].dtype != dtype) continue;
        CudaRun& own = all.of_tensor[t];
        own = {dtype, static_cast<int64_t>(all.pieces.size()), 0};
        for (int64_t begin = 0; begin < tensors[t].count; begin += of_piece, ++own.count)
          all.pieces.push_back({static_cast<int32_t>(t), begin, std::min(of_piece, tensors[t].count - begin)});
      }
      run.count = static_cast<int64_t>(all.pieces.size()) - run.first;
      if (run.count > 0) runs.push_back(run);
    }
  }
  return all;
}

std::unique_ptr<DeviceState> make_cuda_state(const DeviceStateOptions& options) {
  return std::make_unique<CudaState>(options);
}

#ifdef OVERLACE_HAS_CUDA  // else replica_device.cc refuses
std::unique_ptr<DeviceState> open_device_state(const DeviceStateOptions& options) { return make_cuda_state(options); }
#endif

}  // namespace overlace::train
