// Striped matrices of the C API.
#include "overlace/ops/striped.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "overlace/capi_striped.h"
#include "src/capi/convert.h"
#include "src/capi/handles.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace overlace::capi {

struct StripedObject : Child {
  static constexpr std::string_view kName = "striped matrix";
  std::optional<ops::StripedMatrix> matrix;
  std::array<std::array<std::vector<ovl_stripe_part>, 2>, 2> parts;  // by turn; its own, what it owns
};

}  // namespace overlace::capi

namespace {

struct OpenStripes {
  Entry entry;
  std::shared_ptr<StripedObject> object;
  ops::StripedMatrix& matrix() const { return *object->matrix; }
};

base::Status enter_striped(std::string_view call, const ovl_striped* striped, OpenStripes* out) {
  return enter({call, "striped"}, striped, &out->entry, &out->object);
}

base::Result<ops::StripedSpec> stripe_spec_of(std::string_view call, const ovl_stripe_spec* from) {
  OVERLACE_TRY(check_struct({call, "spec"}, from));
  const base::Result<DType> dtype = dtype_of({call, "spec.dtype"}, from->dtype);
  if (!dtype.ok()) return dtype.status();
  if (from->is_batched != 0 && from->is_batched != 1)
    return base::invalid_argument("{}: spec.is_batched is {}, wanted 0 or 1", call, from->is_batched);
  if (from->blocks < 0 || from->blocks > (int64_t{1} << 20))
    return base::invalid_argument("{}: spec.blocks is {}, wanted 0 to {}", call, from->blocks, int64_t{1} << 20);
  return ops::StripedSpec{.blocks = from->blocks,
                          .rows = from->rows,
                          .cols = from->cols,
                          .dtype = *dtype,
                          .is_batched = from->is_batched == 1};
}

std::vector<ovl_stripe_part> parts_of(std::span<const StripePiece> pieces) {
  std::vector<ovl_stripe_part> out;
  for (const StripePiece& piece : pieces) out.push_back({piece.rank, piece.part, piece.data, piece.bytes});
  return out;
}

/// A call that takes what the ranks stored.
template <class Take>
int take_stripes(std::string_view call, const ovl_striped* striped, const ovl_tensor& out, Take take) {
  return guarded([&]() -> base::Status {
    OpenStripes open;
    const base::Result<TensorView> view = view_of({call, "out"}, out);
    if (!view.ok()) return view.status();
    OVERLACE_TRY(enter_striped(call, striped, &open));
    take(open.matrix(), *view);
    return {};
  });
}

}  // namespace

int ovl_stripe(ovl_channel* channel, const ovl_stripe_spec* spec, const char* name, ovl_striped** striped) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_stripe";
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(check_not_null({kCall, "striped"}, striped));
    base::Result<ops::StripedSpec> wanted = stripe_spec_of(kCall, spec);
    if (!wanted.ok()) return wanted.status();
    OVERLACE_TRY(enter({kCall, "channel"}, channel, &entry, &object));
    const auto blocks =
        static_cast<size_t>(wanted->blocks == 0 ? object->channel->team().size() : static_cast<int>(wanted->blocks));
    if (spec->owners != nullptr) wanted->owners.assign(spec->owners, spec->owners + blocks);
    if (spec->used != nullptr) wanted->used.assign(spec->used, spec->used + blocks);
    auto made = std::make_shared<StripedObject>();
    made->matrix.emplace(ops::StripedMatrix::open(*object->channel, *wanted, name == nullptr ? "striped" : name));
    for (size_t turn = 0; turn < 2; ++turn) {
      const StripedRange& range = made->matrix->range(static_cast<int>(turn));
      made->parts[turn] = {parts_of(range.parts()), parts_of(range.owned())};
    }
    give_child(entry.shared(), std::move(made), striped);
    return {};
  });
}

int ovl_stripe_free(ovl_striped* striped) {
  return guarded([&]() -> base::Status {
    OpenStripes open;
    OVERLACE_TRY(enter_striped("ovl_stripe_free", striped, &open));
    Registry::instance().remove(number_of(striped));
    open.matrix().close();
    return {};
  });
}

int ovl_stripe_out(ovl_striped* striped, ovl_tensor* out, int* turn) {
  return guarded([&]() -> base::Status {
    OpenStripes open;
    OVERLACE_TRY(check_not_null({"ovl_stripe_out", "out"}, out));
    OVERLACE_TRY(enter_striped("ovl_stripe_out", striped, &open));
    const TensorView view = open.matrix().out();
    *out = {view.data, static_cast<int32_t>(view.dtype), view.ndim, {}, {}};
    for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i)
      out->sizes[i] = view.sizes[i], out->strides[i] = view.strides[i];
    if (turn != nullptr) *turn = open.matrix().turn();
    return {};
  });
}

int ovl_stripe_rows(ovl_striped* striped, int64_t* rows) {
  return guarded([&]() -> base::Status {
    OpenStripes open;
    OVERLACE_TRY(check_not_null({"ovl_stripe_rows", "rows"}, rows));
    OVERLACE_TRY(enter_striped("ovl_stripe_rows", striped, &open));
    *rows = open.matrix().owned_rows();
    return {};
  });
}

int ovl_stripe_parts(ovl_striped* striped, int turn, int is_owned, const ovl_stripe_part** parts, int* count) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_stripe_parts";
    OpenStripes open;
    OVERLACE_TRY(check_not_null({kCall, "parts"}, parts));
    OVERLACE_TRY(check_not_null({kCall, "count"}, count));
    for (const auto& [name, value] : {std::pair("turn", turn), std::pair("is_owned", is_owned)})
      if (value != 0 && value != 1) return base::invalid_argument("{}: {} is {}, wanted 0 or 1", kCall, name, value);
    OVERLACE_TRY(enter_striped(kCall, striped, &open));
    const std::vector<ovl_stripe_part>& found =
        open.object->parts[static_cast<size_t>(turn)][static_cast<size_t>(is_owned)];
    *parts = found.data();
    *count = static_cast<int>(found.size());
    return {};
  });
}

int ovl_stripe_check_input(ovl_striped* striped, const char* name, ovl_tensor input) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_stripe_check_input";
    OpenStripes open;
    const base::Result<TensorView> view = view_of({kCall, "input"}, input);
    if (!view.ok()) return view.status();
    OVERLACE_TRY(enter_striped(kCall, striped, &open));
    open.matrix().check_input(name == nullptr ? "input" : name, *view);
    return {};
  });
}

int ovl_stripe_reduce_scatter(ovl_striped* striped, ovl_tensor out) {
  return take_stripes("ovl_stripe_reduce_scatter", striped, out,
                      [](ops::StripedMatrix& matrix, const TensorView& view) { matrix.reduce_scatter(view); });
}

int ovl_stripe_all_to_all(ovl_striped* striped, ovl_tensor out) {
  return take_stripes("ovl_stripe_all_to_all", striped, out,
                      [](ops::StripedMatrix& matrix, const TensorView& view) { matrix.all_to_all(view); });
}
