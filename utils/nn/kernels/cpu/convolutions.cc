// Convolutions and matrix products by oneDNN; convolutions in the memory layout that oneDNN prefers
// for each shape.
//
// MindSpore's own convolutions keep the layout of their tensors. With AVX-512 oneDNN then has a
// scalar loop only, so all of MindSpore is kept to AVX2. Here the tensors are reordered, as in
// PyTorch. The oneDNN is a copy of MindSpore's beside this library: as a library of its own it has
// its own instruction set. The interface is that of version 3, `dnnl.h`.
#include <dlfcn.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

// Of winograd.cc.
bool should_use_winograd(const int64_t* x, const int64_t* w, const int32_t* settings);
void convolve_by_winograd(bool is_input_grad, const int64_t* x_shape, const int64_t* w_shape,
                          const float* x, const float* w, float* y);
void compute_weight_grad_by_winograd(const int64_t* x_shape, const int64_t* w_shape,
                                     const float* dy, const float* x, float* dw);

namespace {
using Handle = void*;
using Dims = std::vector<int64_t>;
enum Kind { kForward, kInputGrad, kWeightGrad };
// Constants of dnnl_types.h.
enum { kUnimplemented = 3, kCpu = 1, kFloat32 = 3, kAnyLayout = 1, kTraining = 64, kDirect = 1 };
enum { kSrc = 1, kDst = 17, kWeights = 33, kDiffSrc = 129, kDiffDst = 145, kDiffWeights = 161 };
enum { kSrcLayout = 129, kDiffSrcLayout, kWeightsLayout, kDiffWeightsLayout, kDstLayout, kDiffDstLayout };

// oneDNN calls the virtual functions of a thread pool in this order.
struct Threads {
  virtual int get_num_threads() const { return omp_get_max_threads(); }
  virtual bool get_in_parallel() const { return omp_in_parallel(); }
  virtual void parallel_for(int n, const std::function<void(int, int)>& work) {
#pragma omp parallel for schedule(static, 1) if (n > 1)
    for (int i = 0; i < n; ++i) work(i, n);
  }
  virtual uint64_t get_flags() const { return 0; }
  virtual void wait() {}
  virtual ~Threads() {}
};

struct Library {
  Handle library, engine, stream;
  Threads threads;

  template <class R, class... A>
  R get(const char* name, A... arguments) {
    Handle function = dlsym(library, name);
    if (!function) throw std::runtime_error(std::string("oneDNN has no ") + name);
    return reinterpret_cast<R (*)(A...)>(function)(arguments...);
  }

  template <class... A>
  void call(const char* name, A... arguments) {
    int status = get<int>(name, arguments...);
    if (status) throw std::runtime_error(std::string(name) + ": status " + std::to_string(status));
  }

  Library() {
    static int anchor;
    Dl_info own;
    dladdr(&anchor, &own);
    std::string path = own.dli_fname;
    path = path.substr(0, path.rfind('/')) + "/libdnnl.so";
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library) throw std::runtime_error(dlerror());
    // All instructions, whatever ONEDNN_MAX_CPU_ISA is. It is not implemented on aarch64.
    int status = get<int>("dnnl_set_max_cpu_isa", 0);
    if (status && status != kUnimplemented) throw std::runtime_error("dnnl_set_max_cpu_isa");
    call("dnnl_engine_create", &engine, static_cast<int>(kCpu), size_t{0});
    call("dnnl_threadpool_interop_stream_create", &stream, engine, static_cast<Handle>(&threads));
  }

  // The description of an array: contiguous, or in any layout.
  Handle describe(const Dims& dims, bool contiguous) {
    Handle description;
    int axes = dims.size(), type = kFloat32, any = kAnyLayout;
    if (!contiguous) {
      call("dnnl_memory_desc_create_with_tag", &description, axes, dims.data(), type, any);
      return description;
    }
    Dims strides(axes, 1);
    for (int i = axes - 2; i >= 0; --i) strides[i] = strides[i + 1] * dims[i + 1];
    call("dnnl_memory_desc_create_with_strides", &description, axes, dims.data(), type,
         strides.data());
    return description;
  }

  Handle create_memory(Handle description, Handle data) {
    Handle memory;
    call("dnnl_memory_create", &memory, description, engine, data);
    return memory;
  }

  Handle create_primitive(Handle description) {
    Handle primitive;
    call("dnnl_primitive_create", &primitive, description);
    return primitive;
  }

  struct Argument {
    int index;
    Handle memory;
  };
  void execute(Handle primitive, const std::vector<Argument>& arguments) {
    call("dnnl_primitive_execute", primitive, stream, static_cast<int>(arguments.size()),
         arguments.data());
  }
};

Library& get_library() {
  static Library library;
  return library;
}

// Memory for reordered arrays; all convolutions use the same, one after the other.
struct Buffer {
  Handle data = nullptr;
  size_t bytes = 0;
  Handle reserve(size_t needed) {
    if (needed > bytes) {
      std::free(data);
      bytes = 0;
      const size_t rounded = (needed + 4095) / 4096 * 4096;
      data = std::aligned_alloc(4096, rounded);
      if (!data) throw std::runtime_error("out of memory");
      bytes = rounded;
    }
    return data;
  }
};

// An array of a convolution: MindSpore's, and the same in oneDNN's layout (null if that is equal).
struct Array {
  int index;
  bool is_output;
  Handle contiguous, reordered = nullptr, reorder = nullptr;
  size_t bytes = 0;
};

struct Convolution {
  Handle primitive;
  std::vector<Array> arrays;

  Convolution(Kind kind, const Dims& x, const Dims& w, const Dims& y, const int32_t* settings) {
    Library& library = get_library();
    const int axes = x.size() - 2, groups = settings[2 * axes], direct = kDirect;
    Dims stride(settings, settings + axes), dilation(axes, 0), after(axes);
    Dims before(settings + axes, settings + 2 * axes), weight = w;
    for (int i = 0; i < axes; ++i)
      after[i] = (y[2 + i] - 1) * stride[i] + w[2 + i] - x[2 + i] - before[i];
    if (groups > 1) {
      weight = {groups, w[0] / groups};
      weight.insert(weight.end(), w.begin() + 1, w.end());
    }
    Handle xs = library.describe(x, false), ws = library.describe(weight, false);
    Handle ys = library.describe(y, false), none = nullptr, forward, description;
    library.call("dnnl_convolution_forward_primitive_desc_create", &forward, library.engine,
                 static_cast<int>(kTraining), direct, xs, ws, none, ys, stride.data(),
                 dilation.data(), before.data(), after.data(), none);
    description = forward;
    if (kind == kInputGrad)
      library.call("dnnl_convolution_backward_data_primitive_desc_create", &description,
                   library.engine, direct, xs, ws, ys, stride.data(), dilation.data(),
                   before.data(), after.data(), forward, none);
    if (kind == kWeightGrad)
      library.call("dnnl_convolution_backward_weights_primitive_desc_create", &description,
                   library.engine, direct, xs, ws, none, ys, stride.data(), dilation.data(),
                   before.data(), after.data(), forward, none);
    primitive = library.create_primitive(description);
    if (kind == kForward) {
      add(description, x, kSrc, kSrcLayout, false);
      add(description, weight, kWeights, kWeightsLayout, false);
      add(description, y, kDst, kDstLayout, true);
    } else if (kind == kInputGrad) {
      add(description, y, kDiffDst, kDiffDstLayout, false);
      add(description, weight, kWeights, kWeightsLayout, false);
      add(description, x, kDiffSrc, kDiffSrcLayout, true);
    } else {
      add(description, y, kDiffDst, kDiffDstLayout, false);
      add(description, x, kSrc, kSrcLayout, false);
      add(description, weight, kDiffWeights, kDiffWeightsLayout, true);
    }
  }

  void add(Handle convolution, const Dims& dims, int index, int layout, bool is_output) {
    Library& library = get_library();
    Handle own = library.describe(dims, true), none = nullptr;
    Handle best = library.get<Handle>("dnnl_primitive_desc_query_md", convolution, layout, 0);
    Array array{index, is_output, library.create_memory(own, nullptr)};
    if (!library.get<int>("dnnl_memory_desc_equal", own, best)) {
      Handle from = is_output ? best : own, to = is_output ? own : best, description;
      library.call("dnnl_reorder_primitive_desc_create", &description, from, library.engine, to,
                   library.engine, none);
      array.reorder = library.create_primitive(description);
      array.reordered = library.create_memory(best, nullptr);
      array.bytes = library.get<size_t>("dnnl_memory_desc_get_size", best);
    }
    arrays.push_back(array);
  }

  void execute(const std::vector<Handle>& data) {
    static Buffer buffers[3];
    Library& library = get_library();
    std::vector<Library::Argument> arguments;
    for (int i = 0; i < 3; ++i) {
      Array& array = arrays[i];
      library.call("dnnl_memory_set_data_handle", array.contiguous, data[i]);
      arguments.push_back({array.index, array.reorder ? array.reordered : array.contiguous});
      if (!array.reorder) continue;
      Handle buffer = buffers[i].reserve(array.bytes);
      library.call("dnnl_memory_set_data_handle", array.reordered, buffer);
      if (!array.is_output)
        library.execute(array.reorder, {{kSrc, array.contiguous}, {kDst, array.reordered}});
    }
    library.execute(primitive, arguments);
    for (const Array& array : arrays)
      if (array.reorder && array.is_output)
        library.execute(array.reorder, {{kSrc, array.reordered}, {kDst, array.contiguous}});
    library.call("dnnl_stream_wait", library.stream);
  }
};

// `count` products y (m, n) = a (m, k) b (k, n), `one_...`: of one matrix for all, y as the sum.
struct Product {
  int64_t count, m, n, k;
  bool one_a, one_b, one_y;
};

// Without AVX-512, oneDNN takes up to 2.5 times longer to read a transposed matrix: rows of 1,024
// numbers are 4 KB apart.
#ifdef __AVX512F__
constexpr bool kReadsTransposed = true;
#else
constexpr bool kReadsTransposed = false;
#endif

// x (rows, columns) -> y (columns, rows)
void transpose(int64_t rows, int64_t columns, const float* x, float* y) {
  const int64_t side = 8;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; row += side)
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t i = row; i < std::min(row + side, rows); ++i)
        y[column * rows + i] = x[i * columns + column];
}

int multiply(char transpose_a, char transpose_b, const Product& product, void** p) {
  try {
    Library& library = get_library();
    const auto [count, m, n, k, one_a, one_b, one_y] = product;
    const float *a = static_cast<float*>(p[0]), *b = static_cast<float*>(p[1]);
    if (!kReadsTransposed && transpose_a == 'T' && one_a && count > 1) {  // once for all products
      thread_local Buffer buffer;
      float* transposed = static_cast<float*>(buffer.reserve(4 * m * k));
      transpose(k, m, a, transposed);
      a = transposed;
      transpose_a = 'N';
    }
    float* y = static_cast<float*>(p[2]);
    const int64_t row_a = transpose_a == 'T' ? m : k, row_b = transpose_b == 'T' ? k : n;
    for (int64_t i = 0; i < count; ++i)
      library.call("dnnl_threadpool_interop_sgemm", transpose_a, transpose_b, m, n, k, 1.0f,
                   a + (one_a ? 0 : i * m * k), row_a, b + (one_b ? 0 : i * k * n), row_b,
                   one_y && i > 0 ? 1.0f : 0.0f, y + (one_y ? 0 : i * m * n), n,
                   static_cast<Handle>(&library.threads));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: a matrix product failed: %s\n", error.what());
    return 1;
  }
}

// Products of a (A, ...) and b (B, ...), y (Y, m, n): A, B and Y are their number or 1.
int multiply_all(char transpose_a, char transpose_b, void** p, int64_t** s) {
  const int64_t k = transpose_a == 'T' ? s[0][1] : s[0][2];
  return multiply(transpose_a, transpose_b,
                  {std::max(s[0][0], s[1][0]), s[2][1], s[2][2], k, s[0][0] == 1, s[1][0] == 1,
                   s[2][0] == 1},
                  p);
}

// Copies between maps (H, W) and the pixels (h, w) of them that a stride reaches; the others are 0.
void copy_reached(bool to_reached, int64_t maps, const int64_t* full, const int64_t* reached,
                  const int32_t* stride, float* all, float* few) {
  const int64_t width = full[3], columns = reached[3], step = stride[1];
#pragma omp parallel for schedule(static)
  for (int64_t map = 0; map < maps; ++map) {
    float* start = all + map * full[2] * width;
    if (!to_reached) std::memset(start, 0, 4 * full[2] * width);
    for (int64_t row = 0; row < reached[2]; ++row) {
      float *x = start + row * stride[0] * width, *y = few + (map * reached[2] + row) * columns;
      if (to_reached)
        for (int64_t i = 0; i < columns; ++i) y[i] = x[i * step];
      else
        for (int64_t i = 0; i < columns; ++i) x[i * step] = y[i];
    }
  }
}

// A 1x1 convolution with a stride: products of the pixels that it reaches; oneDNN's own is slower.
int run_strided_pointwise(Kind kind, const int64_t* x_shape, const int64_t* y_shape,
                          const int32_t* stride, const std::vector<Handle>& data) {
  static Buffer buffer;
  const int64_t count = x_shape[0], cin = x_shape[1], cout = y_shape[1];
  const int64_t pixels = y_shape[2] * y_shape[3];
  Handle few = buffer.reserve(4 * count * cin * pixels);
  float *x = static_cast<float*>(data[kind == kForward ? 0 : kind == kInputGrad ? 2 : 1]);
  if (kind != kInputGrad)
    copy_reached(true, count * cin, x_shape, y_shape, stride, x, static_cast<float*>(few));
  Handle forward[] = {data[1], few, data[2]}, input[] = {data[1], data[0], few};
  Handle weight[] = {data[0], few, data[2]};
  if (kind == kForward) return multiply('N', 'N', {count, cout, pixels, cin, true, false, false}, forward);
  if (kind == kWeightGrad) return multiply('N', 'T', {count, cout, cin, pixels, false, false, true}, weight);
  const int status = multiply('T', 'N', {count, cin, pixels, cout, true, false, false}, input);
  copy_reached(false, count * cin, x_shape, y_shape, stride, x, static_cast<float*>(few));
  return status;
}

int run_winograd(Kind kind, const int64_t* x, const int64_t* w, const std::vector<Handle>& data) {
  float *first = static_cast<float*>(data[0]), *second = static_cast<float*>(data[1]);
  float* output = static_cast<float*>(data[2]);
  if (kind == kWeightGrad)
    compute_weight_grad_by_winograd(x, w, first, second, output);
  else
    convolve_by_winograd(kind == kInputGrad, x, w, first, second, output);
  return 0;
}

// Runs a convolution of the shapes of the parameters x, w, y; `data` are the arrays of its kind.
int run(Kind kind, int x, int w, int y, int settings, const std::vector<int>& data, void** p,
        int* n, int64_t** s) {
  static std::mutex mutex;
  static std::map<Dims, Convolution> known;
  std::lock_guard<std::mutex> lock(mutex);
  try {
    const int32_t* numbers = static_cast<int32_t*>(p[settings]);
    const std::vector<Handle> arrays{p[data[0]], p[data[1]], p[data[2]]};
    if (n[x] == 4 && s[w][2] * s[w][3] == 1 && numbers[2] + numbers[3] == 0 && numbers[4] == 1)
      return run_strided_pointwise(kind, s[x], s[y], numbers, arrays);
    if (n[x] == 4 && should_use_winograd(s[x], s[w], numbers))
      return run_winograd(kind, s[x], s[w], arrays);
    Dims key{kind}, shapes[3];
    for (int i = 0; i < 3; ++i) {
      int k = i == 0 ? x : i == 1 ? w : y;
      shapes[i] = Dims(s[k], s[k] + n[k]);
      key.insert(key.end(), shapes[i].begin(), shapes[i].end());
    }
    key.insert(key.end(), numbers, numbers + s[settings][0]);
    auto position = known.find(key);
    if (position == known.end()) {
      Convolution convolution(kind, shapes[0], shapes[1], shapes[2], numbers);
      position = known.emplace(key, convolution).first;
    }
    position->second.execute(arrays);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: a convolution failed: %s\n", error.what());
    return 1;
  }
}

// The product of the sizes of all axes after the second.
int64_t count_pixels(const int64_t* shape, int axes) {
  int64_t pixels = 1;
  for (int i = 2; i < axes; ++i) pixels *= shape[i];
  return pixels;
}
}  // namespace

// a, b -> y: a b, a b^T, a^T b
extern "C" int product(int, void** p, int*, int64_t** s, const char**, void*, void*) {
  return multiply_all('N', 'N', p, s);
}

extern "C" int product_second_transposed(int, void** p, int*, int64_t** s, const char**, void*,
                                         void*) {
  return multiply_all('N', 'T', p, s);
}

extern "C" int product_first_transposed(int, void** p, int*, int64_t** s, const char**, void*,
                                        void*) {
  return multiply_all('T', 'N', p, s);
}

// The same; another name because its gradient differs.
extern "C" int shared_product_second_transposed(int, void** p, int*, int64_t** s, const char**,
                                                void*, void*) {
  return multiply_all('N', 'T', p, s);
}

// A 1x1 convolution with stride 1. w (cout, cin, 1, ...), x (N, cin, ...) -> y (N, cout, ...)
extern "C" int pointwise(int, void** p, int* n, int64_t** s, const char**, void*, void*) {
  const int64_t pixels = count_pixels(s[1], n[1]);
  return multiply('N', 'N', {s[1][0], s[0][0], pixels, s[0][1], true, false, false}, p);
}

// w, dy -> dx
extern "C" int pointwise_input_grad(int, void** p, int* n, int64_t** s, const char**, void*, void*) {
  const int64_t pixels = count_pixels(s[1], n[1]);
  return multiply('T', 'N', {s[1][0], s[0][1], pixels, s[0][0], true, false, false}, p);
}

// dy, x, w -> dw
extern "C" int pointwise_weight_grad(int, void** p, int* n, int64_t** s, const char**, void*,
                                     void*) {
  void* arrays[] = {p[0], p[1], p[3]};
  const int64_t pixels = count_pixels(s[0], n[0]);
  return multiply('N', 'T', {s[0][0], s[0][1], s[1][1], pixels, false, false, true}, arrays);
}

// Settings (int32): strides, zeros before the first element, of each axis; groups.
// x, w, settings -> y
extern "C" int convolution(int, void** p, int* n, int64_t** s, const char**, void*, void*) {
  return run(kForward, 0, 1, 3, 2, {0, 1, 3}, p, n, s);
}

// dy, w, x, settings -> dx
extern "C" int convolution_input_grad(int, void** p, int* n, int64_t** s, const char**, void*,
                                      void*) {
  return run(kInputGrad, 2, 1, 0, 3, {0, 1, 4}, p, n, s);
}

// dy, x, w, settings -> dw
extern "C" int convolution_weight_grad(int, void** p, int* n, int64_t** s, const char**, void*,
                                       void*) {
  return run(kWeightGrad, 1, 2, 0, 3, {0, 1, 4}, p, n, s);
}
