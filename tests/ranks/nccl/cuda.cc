#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/ranks/nccl/stand_ins.h"

namespace {

using overlace::test::nccl::Work;

std::mutex g_mutex;
std::atomic<int> g_alive = 0;
thread_local std::map<std::string, int> t_faults;
thread_local int t_device = 0;

std::string g_fault;  // of any thread
std::mutex g_fault_mutex;

bool fails(const char* call) {
  {
    const std::lock_guard lock(g_fault_mutex);
    if (g_fault == call) {
      g_fault.clear();
      return true;
    }
  }
  const auto found = t_faults.find(call);
  if (found == t_faults.end() || --found->second > 0) return false;
  t_faults.erase(found);
  return true;
}

}  // namespace

struct CUgraph_st {
  std::vector<std::pair<cudaHostFn_t, void*>> objects;
};
struct CUuserObject_st {
  cudaHostFn_t destroy;
  void* data;
};
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  std::deque<Work> queue;
  unsigned long long first = 0;  // of the queue; those before are done
  std::unique_ptr<CUgraph_st> graph;
  unsigned long long capture = 0;

  bool is_running = false;

  /// What waits for another stream runs that one, which may wait for this one in turn.
  unsigned long long run() {
    if (is_running) return first;
    is_running = true;
    while (!queue.empty() && queue.front()()) {
      queue.pop_front();
      ++first;
    }
    is_running = false;
    return first;
  }
};
struct CUevent_st {
  std::shared_ptr<CUstream_st> stream;  // it may be destroyed before
  unsigned long long behind = 0;        // done once so much of the stream is
};

namespace {

std::shared_ptr<CUstream_st> stream_of(cudaStream_t stream) {
  static const auto legacy = std::make_shared<CUstream_st>();
  return stream == nullptr ? legacy : stream->shared_from_this();
}

/// All streams that are not destroyed.
std::vector<std::shared_ptr<CUstream_st>> g_streams;

}  // namespace

namespace overlace::test::nccl::cuda {

void enqueue(cudaStream_t stream, Work work) {
  const std::lock_guard lock(g_mutex);
  if (stream_of(stream)->graph == nullptr) stream_of(stream)->queue.push_back(std::move(work));
}

void fail(const std::string& call, int nth) { t_faults[call] = nth; }

void fail_anywhere(const std::string& call) {
  const std::lock_guard lock(g_fault_mutex);
  g_fault = call;
}

void begin_capture(cudaStream_t stream) {
  static unsigned long long captures = 0;
  const std::lock_guard lock(g_mutex);
  stream->graph = std::make_unique<CUgraph_st>();
  stream->capture = ++captures;
}

cudaGraph_t end_capture(cudaStream_t stream) {
  const std::lock_guard lock(g_mutex);
  return stream->graph.release();
}

void destroy(cudaGraph_t graph) {
  for (const auto& [end, data] : graph->objects) end(data);
  delete graph;
}

std::vector<const void*>& asked_kernels() {
  static std::vector<const void*> list;
  return list;
}
int alive() { return g_alive; }

}  // namespace overlace::test::nccl::cuda

using overlace::test::nccl::cuda::enqueue;

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  overlace::test::nccl::cuda::asked_kernels().push_back(kernel);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  t_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "as the test wants"; }
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (fails("cudaMalloc")) return cudaErrorMemoryAllocation;
  *memory = ::operator new(bytes);
  ++g_alive;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  ::operator delete(memory);
  --g_alive;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (fails("cudaMemsetAsync")) return cudaErrorInvalidValue;
  enqueue(stream, [=] { return std::memset(memory, value, bytes) == memory; });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (fails("cudaMemcpyAsync")) return cudaErrorInvalidValue;
  enqueue(stream, [=] { return std::memcpy(to, from, bytes) == to; });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = t_device;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (fails("cudaStreamCreate")) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(g_mutex);
  g_streams.push_back(std::make_shared<CUstream_st>());
  *stream = g_streams.back().get();
  ++g_alive;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* highest) {
  *least = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(g_mutex);
  std::erase_if(g_streams, [&](const auto& one) { return one.get() == stream; });
  --g_alive;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(g_mutex);
  stream_of(stream)->run();
  return stream_of(stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  if (fails("cudaStreamGetCaptureInfo")) return cudaErrorInvalidValue;
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<CUstream_st> s = stream_of(stream);
  *status = s->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = s->capture;
  if (graph != nullptr) *graph = s->graph.get();
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  ++g_alive;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --g_alive;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (fails("cudaEventRecord")) return cudaErrorInvalidValue;
  const std::lock_guard lock(g_mutex);
  event->stream = stream_of(stream);
  event->behind = event->stream->first + event->stream->queue.size();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(g_mutex);
  return event->stream == nullptr || event->stream->run() >= event->behind ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::shared_ptr<CUstream_st> awaited;
  unsigned long long behind = 0;
  {
    const std::lock_guard lock(g_mutex);
    awaited = event->stream;
    behind = event->behind;
  }
  // The event may be recorded again meanwhile.
  if (awaited != nullptr) enqueue(stream, [=] { return awaited->first >= behind || awaited->run() >= behind; });
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned, unsigned) {
  if (fails("cudaUserObjectCreate")) return cudaErrorMemoryAllocation;
  *object = new CUuserObject_st{destroy, data};
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  object->destroy(object->data);
  delete object;
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) {
  if (fails("cudaGraphRetainUserObject")) return cudaErrorInvalidValue;
  graph->objects.emplace_back(object->destroy, object->data);
  delete object;
  return cudaSuccess;
}

}  // extern "C"
