// Convolution through oneDNN. Our arrays are plain (n, channels, height, width); oneDNN chooses its own blocked layouts
// (`any`), and what differs is reordered on the way: measured two to four times faster than its plain code, reorders
// included. Primitives and their memory are kept per thread and shape, so that nothing is created or locked in the
// steady state.
#include "conv2d/geometry.h"

#include <paceline/cores.h>
#include <paceline/detail/at_exit.h>

#include <dnnl.hpp>

#include <list>
#include <optional>
#include <string_view>
#include <tuple>

namespace paceline {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

constexpr auto kFloat = memory::data_type::f32;

const dnnl::engine& cpu_engine() {
  // Never destroyed: tasks may still run when a program ends.
  static const auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// One array of a primitive: our plain memory, and oneDNN's where its layout differs.
class Argument {
 public:
  Argument(const memory::desc& plain, const memory::desc& chosen)
      : plain_(plain, cpu_engine(), DNNL_MEMORY_NONE), reordered_(plain != chosen) {
    if (!reordered_) return;
    chosen_ = memory(chosen, cpu_engine());
    to_chosen_ = dnnl::reorder(plain_, chosen_);
    to_plain_ = dnnl::reorder(chosen_, plain_);
  }

  const memory& read(dnnl::stream& stream, const void* data) {
    plain_.set_data_handle(const_cast<void*>(data));
    if (reordered_) to_chosen_.execute(stream, plain_, chosen_);
    return memory_to_use();
  }
  const memory& written(void* data) {
    plain_.set_data_handle(data);
    return memory_to_use();
  }
  void finish(dnnl::stream& stream) {
    if (reordered_) to_plain_.execute(stream, chosen_, plain_);
  }

 private:
  const memory& memory_to_use() const { return reordered_ ? chosen_ : plain_; }

  memory plain_, chosen_;
  bool reordered_;
  dnnl::reorder to_chosen_, to_plain_;
};

struct Descriptors {
  memory::desc x, weight, bias, y;
};

// x and y in `layout`; the weights are plain where that is plain, else oneDNN chooses.
Descriptors describe(const Conv2dGeometry& g, Tag layout) {
  const memory::dims weight = g.groups == 1
                                  ? memory::dims{g.out, g.in, g.kernel[0], g.kernel[1]}
                                  : memory::dims{g.groups, g.group_out(), g.group_in(), g.kernel[0], g.kernel[1]};
  const Tag plain_weight = g.groups == 1 ? Tag::oihw : Tag::goihw;
  return {{{g.examples, g.in, g.size[0], g.size[1]}, kFloat, layout},
          {weight, kFloat, layout == Tag::nchw ? plain_weight : Tag::any},
          {{g.out}, kFloat, Tag::a},
          {{g.examples, g.out, g.result[0], g.result[1]}, kFloat, layout}};
}

template <class Description>
bool uses_avx512(const Description& description) {
  return std::string_view(description.impl_info_str()).find("avx512") != std::string_view::npos;
}

// oneDNN 3 takes the parts of a description as they are, oneDNN 2 wrapped once more. `hint` is nothing, or the forward
// description of a backward one.
template <class Primitive, class... Hint, class... Parts>
auto description_of(std::tuple<Hint...> hint, const Parts&... parts) {
  using Description = typename Primitive::primitive_desc;
  return std::apply(
      [&](const auto&... hints) {
        if constexpr (requires { typename Primitive::desc; })
          return Description(typename Primitive::desc(parts...), cpu_engine(), hints...);
        else
          return Description(cpu_engine(), parts..., hints...);
      },
      hint);
}

dnnl::convolution_forward::primitive_desc forward_description(const Conv2dGeometry& g, bool biased) {
  const Descriptors any = describe(g, Tag::any);
  const memory::dims stride{g.stride[0], g.stride[1]};
  const memory::dims dilation{g.dilation[0] - 1, g.dilation[1] - 1};
  const memory::dims padding{g.padding[0], g.padding[1]};
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kHow = dnnl::algorithm::convolution_direct;
  using Primitive = dnnl::convolution_forward;
  if (biased)
    return description_of<Primitive>(std::tuple(), kKind, kHow, any.x, any.weight, any.bias, any.y, stride, dilation,
                                     padding, padding);
  return description_of<Primitive>(std::tuple(), kKind, kHow, any.x, any.weight, any.y, stride, dilation, padding,
                                   padding);
}

// One pass over arrays of one shape, ready to run.
class Convolution {
 public:
  Convolution(Conv2dPass pass, const Conv2dGeometry& g, bool biased) : pass_(pass) {
    const Descriptors plain = describe(g, Tag::nchw);
    const Descriptors any = describe(g, Tag::any);
    const memory::dims stride{g.stride[0], g.stride[1]};
    const memory::dims dilation{g.dilation[0] - 1, g.dilation[1] - 1};
    const memory::dims padding{g.padding[0], g.padding[1]};
    constexpr auto kHow = dnnl::algorithm::convolution_direct;
    const auto hint = forward_description(g, biased);
    switch (pass) {
      case Conv2dPass::kForward: {
        x_.emplace(plain.x, hint.src_desc());
        weight_.emplace(plain.weight, hint.weights_desc());
        y_.emplace(plain.y, hint.dst_desc());
        primitive_ = dnnl::convolution_forward(hint);
        break;
      }
      case Conv2dPass::kBackwardData: {
        const auto description = description_of<dnnl::convolution_backward_data>(
            std::tuple(hint), kHow, any.x, any.weight, any.y, stride, dilation, padding, padding);
        x_.emplace(plain.x, description.diff_src_desc());
        weight_.emplace(plain.weight, description.weights_desc());
        y_.emplace(plain.y, description.diff_dst_desc());
        primitive_ = dnnl::convolution_backward_data(description);
        break;
      }
      case Conv2dPass::kBackwardWeight: {
        const auto describe_pass = [&](const Descriptors& as) {
          return description_of<dnnl::convolution_backward_weights>(std::tuple(hint), kHow, as.x, as.weight, as.bias,
                                                                    as.y, stride, dilation, padding, padding);
        };
        auto description = describe_pass(any);
        // For few channels `any` falls back to AVX2, while channels-last has AVX-512 code: 409 and 171 microseconds for
        // LeNet's second layer at batch 64.
        if (!uses_avx512(description)) {
          const auto channels_last = describe_pass(describe(g, Tag::nhwc));
          if (uses_avx512(channels_last)) description = channels_last;
        }
        x_.emplace(plain.x, description.src_desc());
        weight_.emplace(plain.weight, description.diff_weights_desc());
        y_.emplace(plain.y, description.diff_dst_desc());
        primitive_ = dnnl::convolution_backward_weights(description);
        break;
      }
    }
    bias_.emplace(plain.bias, plain.bias);
  }

  void run(dnnl::stream& stream, const Conv2dArrays& arrays) {
    std::unordered_map<int, memory> arguments;
    switch (pass_) {
      case Conv2dPass::kForward:
        arguments = {{DNNL_ARG_SRC, x_->read(stream, arrays.x)},
                     {DNNL_ARG_WEIGHTS, weight_->read(stream, arrays.weight)},
                     {DNNL_ARG_DST, y_->written(arrays.y)}};
        if (arrays.bias) arguments.emplace(DNNL_ARG_BIAS, bias_->read(stream, arrays.bias));
        primitive_.execute(stream, arguments);
        y_->finish(stream);
        break;
      case Conv2dPass::kBackwardData:
        arguments = {{DNNL_ARG_DIFF_DST, y_->read(stream, arrays.y_gradient)},
                     {DNNL_ARG_WEIGHTS, weight_->read(stream, arrays.weight)},
                     {DNNL_ARG_DIFF_SRC, x_->written(arrays.x_gradient)}};
        primitive_.execute(stream, arguments);
        x_->finish(stream);
        break;
      case Conv2dPass::kBackwardWeight:
        arguments = {{DNNL_ARG_SRC, x_->read(stream, arrays.x)},
                     {DNNL_ARG_DIFF_DST, y_->read(stream, arrays.y_gradient)},
                     {DNNL_ARG_DIFF_WEIGHTS, weight_->written(arrays.weight_gradient)},
                     {DNNL_ARG_DIFF_BIAS, bias_->written(arrays.bias_gradient)}};
        primitive_.execute(stream, arguments);
        weight_->finish(stream);
        break;
    }
    stream.wait();
  }

 private:
  Conv2dPass pass_;
  std::optional<Argument> x_, weight_, bias_, y_;
  dnnl::primitive primitive_;
};

struct Key {
  Conv2dPass pass;
  Conv2dGeometry geometry;
  bool biased;
  int team;  // oneDNN divides the work when the primitive is made
  friend bool operator==(const Key&, const Key&) = default;
};

// The convolutions of one thread, the one used last in front. Empty where oneDNN has no code for a shape.
class Cache {
 public:
  Convolution* find(const Key& key) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!(entry->first == key)) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return get();
    }
    if (entries_.size() == kLimit) entries_.pop_back();
    entries_.emplace_front(key, std::nullopt);
    try {
      entries_.front().second.emplace(key.pass, key.geometry, key.biased);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) {
        entries_.pop_front();
        throw Error(str("[conv2d] oneDNN failed: ", error.what()));
      }
    }
    return get();
  }

  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kLimit = 256;  // shapes; a deep network has about 100

  Convolution* get() { return entries_.front().second ? &*entries_.front().second : nullptr; }

  dnnl::stream stream_{cpu_engine()};
  std::list<std::pair<Key, std::optional<Convolution>>> entries_;
};

double operations(const Conv2dGeometry& g) {
  return 2.0 * static_cast<double>(g.examples * g.out * g.output_plane()) * static_cast<double>(g.patch());
}

}  // namespace

void conv2d_prepare_onednn() {
  [[maybe_unused]] static const bool once = [] {
    const Conv2dGeometry geometry = make_geometry({1, 1, 3, 3}, {1, 1, 3, 3}, {});
    for (const Conv2dPass pass : {Conv2dPass::kForward, Conv2dPass::kBackwardData, Conv2dPass::kBackwardWeight})
      Convolution(pass, geometry, true);
    detail::rest_before_exit();
    return true;
  }();
}

bool conv2d_onednn(Conv2dPass pass, const Conv2dGeometry& geometry, const Conv2dArrays& arrays) {
  thread_local Cache cache;
  // The weights' gradient is summed over threads behind spinning barriers, which cost milliseconds when another process
  // has the core: small ones stay on one thread.
  constexpr double kWorthATeam = 6.4e7;
  const TeamScope team(pass == Conv2dPass::kBackwardWeight && operations(geometry) < kWorthATeam ? 1 : team_size());
  Convolution* const convolution = cache.find({pass, geometry, arrays.bias != nullptr, team_size()});
  if (!convolution) return false;
  convolution->run(cache.stream(), arrays);
  return true;
}

}  // namespace paceline
