#include <string>

#include "overlace/operator.h"
#include "src/base/json.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

using base::Json;

constexpr const char* kRoles[] = {"input", "output", "bias", "gathered", "data", "scale"};
constexpr const char* kFieldTypes[] = {"integer", "real", "flag", "text"};

Json args_json(const OperatorDef& op) {
  Json out = Json::array();
  for (const Arg& arg : op.args) {
    Json shape = Json::array();
    shape.push_back(arg.rows);
    if (!arg.columns.empty()) shape.push_back(arg.columns);
    Json one = Json::Object{
        {"name", arg.call},          {"buffer", arg.name},           {"role", kRoles[static_cast<size_t>(arg.role)]},
        {"shape", std::move(shape)}, {"has_layout", arg.has_layout}, {"doc", arg.doc}};
    if (!arg.cols.rows.empty()) {
      Json cols = Json::array();
      for (const std::string_view side : {arg.cols.rows, arg.cols.columns}) cols.push_back(side);
      one.set("shape_of_cols", std::move(cols));
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json fields_json(const OperatorDef& op) {
  Json out = Json::array();
  for (const FieldDef& field : op.fields) {
    out.push_back(
        Json::Object{{"name", field.name}, {"type", kFieldTypes[static_cast<size_t>(field.type)]}, {"doc", field.doc}});
  }
  return out;
}

Json families_json(const OperatorDef& op) {
  Json out = Json::array();
  for (const FamilyDef& family : op.families) {
    out.push_back(
        Json::Object{{"name", family.name}, {"purpose", name_of(family.purpose)}, {"has_degree", family.has_degree}});
  }
  return out;
}

}  // namespace

std::string operators_json() {
  Json out = Json::array();
  for (const OperatorDef* op : operators()) {
    out.push_back(Json::Object{{"name", op->name},
                               {"summary", op->summary},
                               {"args", args_json(*op)},
                               {"fields", fields_json(*op)},
                               {"families", families_json(*op)},
                               {"local", op->local_param},
                               {"takes_activation", op->takes_activation}});
  }
  return out.dump();
}

}  // namespace overlace::spec
