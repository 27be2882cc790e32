// Prints the best class of one clip of raw uint8 pixels: classify tsm.onnx clip.bin
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int, char** argv) {
  Ort::Env env;
  Ort::Session session(env, argv[1], Ort::SessionOptions());
  auto shape = session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
  shape[0] = 1;  // of a file with --batch free, or 1
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<uint8_t> pixels(text.begin(), text.end());
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto clip = Ort::Value::CreateTensor<uint8_t>(memory, pixels.data(), pixels.size(), shape.data(),
                                                shape.size());
  Ort::AllocatorWithDefaultOptions allocator;
  auto input = session.GetInputNameAllocated(0, allocator);
  auto output = session.GetOutputNameAllocated(0, allocator);
  const char* inputs[] = {input.get()};
  const char* outputs[] = {output.get()};
  auto result = session.Run(Ort::RunOptions(), inputs, &clip, 1, outputs, 1);
  auto classes = result[0].GetTensorTypeAndShapeInfo().GetElementCount();
  const float* scores = result[0].GetTensorData<float>();
  auto best = std::max_element(scores, scores + classes);
  std::cout << best - scores << " " << *best << "\n";
}
