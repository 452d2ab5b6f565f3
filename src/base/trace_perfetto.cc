// Perfetto's trace format: protocol buffers, of which a trace needs a handful of fields. Spans become slices (begin and
// end event) on one thread track per row, arrows become flow ids on the end of the source's and the begin of the
// target's slice, or on instants where no slice ends or begins at that time.
#include <algorithm>
#include <bit>
#include <optional>

#include "src/base/protobuf.h"
#include "src/base/trace_formats.h"

namespace overlace::base {
namespace trace_formats {
namespace {

using protobuf::Cursor;
using protobuf::kBytes;
using protobuf::kFixed64;
using protobuf::kVarint;
using protobuf::Message;

// Field numbers of perfetto.protos, message by message.
namespace field {
constexpr uint32_t kTracePacket = 1;
constexpr uint32_t kPacketTimestamp = 8, kPacketSequence = 10, kPacketTrackEvent = 11, kPacketFlags = 13,
                   kPacketTrackDescriptor = 60;
constexpr uint32_t kTrackUuid = 1, kTrackName = 2, kTrackProcess = 3, kTrackThread = 4, kTrackParent = 5;
constexpr uint32_t kProcessPid = 1, kProcessName = 6;
constexpr uint32_t kThreadPid = 1, kThreadTid = 2, kThreadName = 5;
constexpr uint32_t kEventAnnotation = 4, kEventType = 9, kEventTrack = 11, kEventCategory = 22, kEventName = 23,
                   kEventFlow = 47, kEventFlowEnd = 48;
constexpr uint32_t kAnnotationBool = 2, kAnnotationInt = 4, kAnnotationDouble = 5, kAnnotationString = 6,
                   kAnnotationName = 10;
}  // namespace field

constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3;
constexpr uint64_t kSequence = 1, kIncrementalStateCleared = 1;
constexpr uint64_t kTitleTrack = 1;
constexpr std::string_view kPerfettoSchema = "overlace.trace/1";

uint64_t process_track(int rank) { return 0x1000 + static_cast<uint64_t>(rank); }
uint64_t row_track(size_t row) { return 0x1000000 + static_cast<uint64_t>(row); }

/// ---- writing ----
Message annotation(std::string_view name) { return Message().bytes(field::kAnnotationName, name); }

struct Event {
  int64_t ns = 0;
  Message message;
};

Event event_on(int64_t ns, uint64_t type, uint64_t track) {
  return {ns, Message().varint(field::kEventType, type).varint(field::kEventTrack, track)};
}

Message packet() { return Message().varint(field::kPacketSequence, kSequence); }

class Writer {
 public:
  explicit Writer(const Trace& trace) : trace_(trace), origin_(earliest_ns(trace)), rows_(rows_of(trace)) {}

  std::string write() {
    write_descriptors();
    tie_arrows();
    for (size_t i = 0; i < rows_.size(); ++i) add_row_events(i);
    for (size_t i = 0; i < trace_.arrows.size(); ++i) add_instants(i);
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.ns < b.ns; });
    for (const Event& event : events_) {
      Message timed = packet();
      timed.varint(field::kPacketTimestamp, static_cast<uint64_t>(event.ns));
      add_packet(timed.message(field::kPacketTrackEvent, event.message));
    }
    return file_.text();
  }

 private:
  void add_packet(const Message& message) { file_.message(field::kTracePacket, message); }

  void write_descriptors() {
    const std::string title = trace_.title.empty() ? "overlace" : trace_.title;
    Message about = Message().varint(field::kTrackUuid, kTitleTrack);
    about.bytes(field::kTrackName, trace_.emulated ? title + " (emulated)" : title);
    add_packet(
        packet().varint(field::kPacketFlags, kIncrementalStateCleared).message(field::kPacketTrackDescriptor, about));
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      const auto pid = static_cast<uint64_t>(pid_of(row.rank));
      if (i == 0 || rows_[i - 1].rank != row.rank) {
        const std::string name = process_name(row.rank) + (trace_.emulated ? " (emulated)" : "");
        const Message process = Message().varint(field::kProcessPid, pid).bytes(field::kProcessName, name);
        add_packet(packet().message(
            field::kPacketTrackDescriptor,
            Message().varint(field::kTrackUuid, process_track(row.rank)).message(field::kTrackProcess, process)));
      }
      const Message thread = Message()
                                 .varint(field::kThreadPid, pid)
                                 .varint(field::kThreadTid, static_cast<uint64_t>(tid_of(i)))
                                 .bytes(field::kThreadName, row.lane);
      add_packet(
          packet().message(field::kPacketTrackDescriptor, Message()
                                                              .varint(field::kTrackUuid, row_track(i))
                                                              .varint(field::kTrackParent, process_track(row.rank))
                                                              .message(field::kTrackThread, thread)));
    }
    // The counts let a reader notice a file that was cut between two packets.
    Event header = event_on(0, kInstant, kTitleTrack);
    header.message.bytes(field::kEventName, title)
        .message(field::kEventAnnotation, annotation("schema").bytes(field::kAnnotationString, kPerfettoSchema))
        .message(field::kEventAnnotation, annotation("title").bytes(field::kAnnotationString, trace_.title))
        .message(field::kEventAnnotation, annotation("emulated").varint(field::kAnnotationBool, trace_.emulated))
        .message(field::kEventAnnotation, annotation("spans").varint(field::kAnnotationInt, trace_.spans.size()))
        .message(field::kEventAnnotation, annotation("arrows").varint(field::kAnnotationInt, trace_.arrows.size()));
    events_.push_back(std::move(header));
  }

  void tie_arrows() {
    const Anchors anchors(rows_);
    for (const Arrow& arrow : trace_.arrows) {
      sources_.push_back(anchors.source(arrow));
      targets_.push_back(anchors.target(arrow));
      const size_t i = sources_.size() - 1;
      if (sources_[i].span != nullptr) leaving_[sources_[i].span].push_back(i);
      if (targets_[i].span != nullptr) entering_[targets_[i].span].push_back(i);
    }
  }

  static uint64_t flow_id(size_t arrow) { return static_cast<uint64_t>(arrow) + 1; }

  void add_flow_source(Message& event, size_t arrow) const {
    event.fixed64(field::kEventFlow, flow_id(arrow));
    event.message(
        field::kEventAnnotation,
        annotation(format("signal {}", flow_id(arrow))).bytes(field::kAnnotationString, trace_.arrows[arrow].name));
  }

  void add_row_events(size_t row) {
    for (const Span* span : rows_[row].spans) {
      Event begin = event_on(span->begin_ns - origin_, kSliceBegin, row_track(row));
      begin.message.bytes(field::kEventCategory, span->category).bytes(field::kEventName, span->name);
      if (span->bytes != 0)
        begin.message.message(field::kEventAnnotation,
                              annotation("bytes").varint(field::kAnnotationInt, static_cast<uint64_t>(span->bytes)));
      if (span->flops != 0)
        begin.message.message(
            field::kEventAnnotation,
            annotation("flops").fixed64(field::kAnnotationDouble, std::bit_cast<uint64_t>(span->flops)));
      if (const auto it = entering_.find(span); it != entering_.end())
        for (size_t arrow : it->second) begin.message.fixed64(field::kEventFlowEnd, flow_id(arrow));
      events_.push_back(std::move(begin));
      Event end = event_on(std::max(span->end_ns, span->begin_ns) - origin_, kSliceEnd, row_track(row));
      if (const auto it = leaving_.find(span); it != leaving_.end())
        for (size_t arrow : it->second) add_flow_source(end.message, arrow);
      events_.push_back(std::move(end));
    }
  }

  void add_instants(size_t i) {
    const Arrow& arrow = trace_.arrows[i];
    if (sources_[i].span == nullptr) {
      Event source = event_on(arrow.from_ns - origin_, kInstant, row_track(sources_[i].row));
      source.message.bytes(field::kEventName, arrow.name);
      add_flow_source(source.message, i);
      events_.push_back(std::move(source));
    }
    if (targets_[i].span == nullptr) {
      Event target = event_on(arrow.to_ns - origin_, kInstant, row_track(targets_[i].row));
      target.message.bytes(field::kEventName, arrow.name).fixed64(field::kEventFlowEnd, flow_id(i));
      events_.push_back(std::move(target));
    }
  }

  const Trace& trace_;
  const int64_t origin_;
  const std::vector<Row> rows_;
  std::vector<Anchor> sources_, targets_;  // by arrow
  std::map<const Span*, std::vector<size_t>> leaving_, entering_;
  std::vector<Event> events_;
  Message file_;
};

/// ---- reading ----
struct Annotation {
  std::string name, text;
  uint64_t integer = 0;  // of an integer or a boolean
  double number = 0;
};

struct TrackEvent {
  uint64_t type = 0, track = 0;
  std::string category, name;
  std::vector<Annotation> annotations;
  std::vector<uint64_t> flows, flow_ends;

  const Annotation* find(std::string_view key) const {
    for (const Annotation& a : annotations)
      if (a.name == key) return &a;
    return nullptr;
  }
};

struct Track {
  int rank = 0;
  std::string lane;
  std::vector<Span> open;
};

/// The two ends of an arrow come in either order where their times are equal.
struct Flow {
  Arrow arrow;
  bool has_source = false, has_target = false;
};

class PerfettoReader {
 public:
  explicit PerfettoReader(std::string_view source) : source_(source) {}

  Result<Trace> read(std::string_view bytes) {
    OVERLACE_TRY(each_field(bytes, [this](const Cursor& c) {
      return c.is(field::kTracePacket, kBytes) ? read_packet(c.bytes()) : fail("unknown field outside of packets");
    }));
    for (const auto& [uuid, track] : tracks_)
      if (!track.open.empty()) return fail(format("slice \"{}\" never ends", track.open.back().name));
    for (auto& [id, flow] : flows_) {
      if (!flow.has_source || !flow.has_target) return fail(format("flow {} lacks an end", id));
      trace_.arrows.push_back(std::move(flow.arrow));
    }
    if (!has_header_) return fail("no header of overlace");
    if (trace_.spans.size() != num_spans_ || trace_.arrows.size() != num_arrows_)
      return fail(format("{} spans and {} arrows, wanted {} and {}", trace_.spans.size(), trace_.arrows.size(),
                         num_spans_, num_arrows_));
    return std::move(trace_);
  }

 private:
  Status fail(std::string_view why) const {
    return error(Errc::corrupt, "{}: Perfetto packet {}: {}", source_, packet_, why);
  }

  template <class Visit>
  Status each_field(std::string_view bytes, Visit visit) {
    Cursor cursor(bytes);
    while (!cursor.at_end()) {
      if (const char* why = cursor.next()) return fail(why);
      OVERLACE_TRY(visit(cursor));
    }
    return {};
  }

  Status read_packet(std::string_view bytes) {
    ++packet_;
    uint64_t timestamp = 0;
    std::optional<std::string_view> event, descriptor;
    OVERLACE_TRY(each_field(bytes, [&](const Cursor& c) {
      if (c.is(field::kPacketTimestamp, kVarint)) timestamp = c.value();
      if (c.is(field::kPacketTrackEvent, kBytes)) event = c.bytes();
      if (c.is(field::kPacketTrackDescriptor, kBytes)) descriptor = c.bytes();
      return Status();
    }));
    if (timestamp > static_cast<uint64_t>(kMaxTime)) return fail(format("timestamp {} is out of range", timestamp));
    if (descriptor) OVERLACE_TRY(read_descriptor(*descriptor));
    if (event) OVERLACE_TRY(read_event(*event, static_cast<int64_t>(timestamp)));
    return {};
  }

  Status read_descriptor(std::string_view bytes) {
    uint64_t uuid = 0;
    std::optional<std::string_view> thread;
    OVERLACE_TRY(each_field(bytes, [&](const Cursor& c) {
      if (c.is(field::kTrackUuid, kVarint)) uuid = c.value();
      if (c.is(field::kTrackThread, kBytes)) thread = c.bytes();
      return Status();
    }));
    if (!thread) return {};
    uint64_t pid = 0;
    Track track;
    OVERLACE_TRY(each_field(*thread, [&](const Cursor& c) {
      if (c.is(field::kThreadPid, kVarint)) pid = c.value();
      if (c.is(field::kThreadName, kBytes)) track.lane = c.bytes();
      return Status();
    }));
    if (pid < 1 || pid > kMaxRank + 1) return fail(format("pid is {}, wanted 1 to {}", pid, kMaxRank + 1));
    track.rank = static_cast<int>(pid - 1);
    if (!tracks_.emplace(uuid, std::move(track)).second) return fail(format("track {} is described twice", uuid));
    return {};
  }

  Status read_annotation(std::string_view bytes, Annotation& out) {
    return each_field(bytes, [&](const Cursor& c) {
      if (c.is(field::kAnnotationName, kBytes)) out.name = c.bytes();
      if (c.is(field::kAnnotationString, kBytes)) out.text = c.bytes();
      if (c.is(field::kAnnotationInt, kVarint) || c.is(field::kAnnotationBool, kVarint)) out.integer = c.value();
      if (c.is(field::kAnnotationDouble, kFixed64)) out.number = std::bit_cast<double>(c.value());
      return Status();
    });
  }

  Status read_event(std::string_view bytes, int64_t ns) {
    TrackEvent event;
    OVERLACE_TRY(each_field(bytes, [&](const Cursor& c) {
      if (c.is(field::kEventType, kVarint)) event.type = c.value();
      if (c.is(field::kEventTrack, kVarint)) event.track = c.value();
      if (c.is(field::kEventCategory, kBytes)) event.category = c.bytes();
      if (c.is(field::kEventName, kBytes)) event.name = c.bytes();
      if (c.is(field::kEventFlow, kFixed64)) event.flows.push_back(c.value());
      if (c.is(field::kEventFlowEnd, kFixed64)) event.flow_ends.push_back(c.value());
      if (c.is(field::kEventAnnotation, kBytes)) return read_annotation(c.bytes(), event.annotations.emplace_back());
      return Status();
    }));
    if (event.track == kTitleTrack) return read_header(event);
    const auto it = tracks_.find(event.track);
    if (it == tracks_.end()) return fail(format("track {} was not described", event.track));
    Track& track = it->second;
    OVERLACE_TRY(read_flows(event, track, ns));
    if (event.type == kInstant) return {};
    if (event.type == kSliceBegin) {
      const Annotation* moved = event.find("bytes");
      const Annotation* flops = event.find("flops");
      track.open.push_back({.rank = track.rank,
                            .lane = track.lane,
                            .name = std::move(event.name),
                            .category = std::move(event.category),
                            .begin_ns = ns,
                            .end_ns = ns,
                            .bytes = moved == nullptr ? 0 : static_cast<int64_t>(moved->integer),
                            .flops = flops == nullptr ? 0 : flops->number});
      return {};
    }
    if (event.type != kSliceEnd) return fail(format("event type is {}, wanted 1 to 3", event.type));
    if (track.open.empty()) return fail(format("slice ends before it began on track {}", event.track));
    Span span = std::move(track.open.back());
    track.open.pop_back();
    span.end_ns = ns;
    OVERLACE_TRY(check_span(span, source_));
    trace_.spans.push_back(std::move(span));
    return {};
  }

  Status read_flows(const TrackEvent& event, const Track& track, int64_t ns) {
    for (uint64_t id : event.flows) {
      Flow& flow = flows_[id];
      const Annotation* name = event.find(format("signal {}", id));
      if (flow.has_source || name == nullptr) return fail(format("flow {} has two sources or no name", id));
      flow.has_source = true;
      flow.arrow.name = name->text;
      flow.arrow.from_rank = track.rank;
      flow.arrow.from_lane = track.lane;
      flow.arrow.from_ns = ns;
    }
    for (uint64_t id : event.flow_ends) {
      Flow& flow = flows_[id];
      if (flow.has_target) return fail(format("flow {} ends twice", id));
      flow.has_target = true;
      flow.arrow.to_rank = track.rank;
      flow.arrow.to_lane = track.lane;
      flow.arrow.to_ns = ns;
    }
    return {};
  }

  Status read_header(const TrackEvent& event) {
    const Annotation* schema = event.find("schema");
    if (schema == nullptr || schema->text != kPerfettoSchema)
      return fail(format("schema is \"{}\", wanted \"{}\"", schema == nullptr ? "" : schema->text, kPerfettoSchema));
    if (has_header_) return fail("two headers");
    has_header_ = true;
    if (const Annotation* a = event.find("title")) trace_.title = a->text;
    if (const Annotation* a = event.find("emulated")) trace_.emulated = a->integer != 0;
    if (const Annotation* a = event.find("spans")) num_spans_ = a->integer;
    if (const Annotation* a = event.find("arrows")) num_arrows_ = a->integer;
    return {};
  }

  std::string_view source_;
  uint64_t packet_ = 0, num_spans_ = 0, num_arrows_ = 0;
  bool has_header_ = false;
  std::map<uint64_t, Track> tracks_;
  std::map<uint64_t, Flow> flows_;
  Trace trace_;
};

}  // namespace

Result<Trace> parse_perfetto(std::string_view bytes, std::string_view source) {
  return PerfettoReader(source).read(bytes);
}

}  // namespace trace_formats

std::string to_perfetto(const Trace& trace) { return trace_formats::Writer(trace).write(); }

}  // namespace overlace::base
