/* pack_rows: what runs on packed rows, what reads them, and what forbids packing. */
#include "pass_test.h"

#define MODEL                                                                                                          \
    "input %ids : i64[batch, seq]\ninput %mask : i64[batch, seq]\n"                                                    \
    "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\nconst %pos : f32[4, 2] = {1, 2, 3, 4, 5, 6, 7, 8}\n"   \
    "const %g : f32[2] = {1, 2}\nconst %b : f32[2] = {0, 1}\n"                                                         \
    "const %wq : f32[2, 6] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}\nconst %wo : f32[2, 2] = {1, 2, 3, 4}\n"          \
    "%e : f32[batch, seq, 2] = embedding(%g, %b, %word, %ids, %pos, _) {epsilon=1e-12, offsets=[0, 0]}\n"              \
    "%qkv : f32[batch, seq, 6] = linear(%e, %wq)\n"                                                                    \
    "%att : f32[batch, seq, 2] = attention(%qkv, %qkv, %qkv, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "  \
    "q_offset=0, k_offset=2, v_offset=4, scale=0.7, masked_row=1}\n"                                                   \
    "%o : f32[batch, seq, 2] = linear(%att, %wo)\n"                                                                    \
    "%h : f32[batch, seq, 2] = skip_layer_norm(%o, %e, %g, %b) {epsilon=1e-12}\n"
#define PACKED "row_map=1 attention_rows=1 attention=0"

static const struct pass_case cases[] = {
    {"token output", "pack_rows", MODEL "output %h as \"h\"\n",
     PACKED " unpack_rows=1 take_rows=0 pack_rows=2\ntext:f32[rows, 6] = linear\n"
            "text:%h : f32[rows, 2] = skip_layer_norm\ntext:masked_row=1"},
    {"first token", "pack_rows",
     MODEL "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %c as \"c\"\n",
     PACKED " unpack_rows=0 take_rows=1 gather=0\ntext:values=[0]\ntext:start=0"},
    {"first token by slice", "pack_rows",
     MODEL "%s : f32[batch, 1, 2] = slice(%h) {axes=[1], starts=[0], ends=[1], steps=[1]}\n"
           "%c : f32[batch, 2] = reshape(%s)\noutput %c as \"c\"\n",
     PACKED " unpack_rows=0 take_rows=1 slice=0"},
    {"masked mean", "pack_rows",
     MODEL "const %tiny : f32[] = {1e-09}\n%m1 : i64[batch, seq, 1] = reshape(%mask)\n"
           "%m2 : i64[batch, seq, 2] = expand(%m1)\n%mf : f32[batch, seq, 2] = cast(%m2) {to=1}\n"
           "%hm : f32[batch, seq, 2] = mul(%h, %mf)\n%sum : f32[batch, 2] = reduce_sum(%hm) {axes=[1], keepdims=0}\n"
           "%n : f32[batch, 2] = reduce_sum(%mf) {axes=[1], keepdims=0}\n%c : f32[batch, 2] = clip(%n, %tiny)\n"
           "%y : f32[batch, 2] = div(%sum, %c)\noutput %y as \"y\"\n",
     PACKED " mean_rows=1 unpack_rows=0 reduce_sum=0 clip=0\ntext:mean_rows(%h, %row_map)"},
    {"masked sum", "pack_rows",
     MODEL "%m1 : i64[batch, seq, 1] = reshape(%mask)\n%mb : bool[batch, seq, 1] = cast(%m1) {to=9}\n"
           "%nb : bool[batch, seq, 1] = not(%mb)\nconst %zero : f32[] = {0}\n"
           "%hm : f32[batch, seq, 2] = where(%nb, %zero, %h)\n"
           "%sum : f32[batch, 2] = reduce_sum(%hm) {axes=[1], keepdims=0}\noutput %sum as \"y\"\n",
     PACKED " unpack_rows=1 reduce_sum=1"},
    {"logits by token, split", "pack_rows",
     MODEL "%a : f32[batch, seq, 1] = slice(%h) {axes=[2], starts=[0], ends=[1], steps=[1]}\n"
           "%s : f32[batch, seq] = reshape(%a)\noutput %s as \"s\"\n",
     PACKED " unpack_rows=1 slice=1\ntext:axes=[1]\ntext:f32[rows] = reshape"},
    {"rows merged", "pack_rows",
     MODEL "%f : f32[batch*seq, 2] = reshape(%h)\n%l : f32[batch*seq, 2] = linear(%f, %wo)\n"
           "%s : f32[batch, seq, 2] = reshape(%l)\noutput %s as \"s\"\n",
     PACKED " unpack_rows=1 linear=3"},
    {"rows merged in an output", "pack_rows", MODEL "%f : f32[batch*seq, 2] = reshape(%h)\noutput %f as \"f\"\n",
     "row_map=0 attention=1\nmissed:does not show its tokens"},
    {"a padding mask: token outputs as the source has them", "pack_rows",
     "input %attention_mask : i64[batch, seq]\n%b : bool[batch, seq] = cast(%attention_mask) {to=9}\n"
     "%not : bool[batch, seq] = not(%b)\ninput %e : f32[batch, seq, 2]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %not) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0\nmissed:no attention_mask input marks"},
    {"a mask that is only counted: its tokens stay too", "pack_rows",
     "input %ids : i64[batch, seq]\ninput %attention_mask : i64[batch, seq]\n"
     "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n%e : f32[batch, seq, 2] = gather(%word, %ids) "
     "{axis=0}\n"
     "%n : i64[batch, 1] = reduce_sum(%attention_mask) {axes=[1], keepdims=1}\n"
     "%p : i64[seq] = range() {start=0, delta=1}\n%p1 : i64[1, seq] = reshape(%p)\n"
     "%keys : bool[batch, seq] = less(%p1, %n)\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %keys) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\noutput %h as \"h\"\n",
     PACKED " unpack_rows=1 where=1\ntext:row_map(%keys, %attention_mask)\ntext:{mode=1}"},
    {"a mask made of the ids: token outputs as the source has them", "pack_rows",
     "input %ids : i64[batch, seq]\nconst %pad : i64[] = {1}\n%p : bool[batch, seq] = equal(%ids, %pad)\n"
     "%mask : bool[batch, seq] = not(%p)\nconst %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
     "%e : f32[batch, seq, 2] = gather(%word, %ids) {axis=0}\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0\nmissed:no attention_mask input marks"},
    {"a mask made of the ids: first token", "pack_rows",
     "input %ids : i64[batch, seq]\nconst %pad : i64[] = {1}\n%p : bool[batch, seq] = equal(%ids, %pad)\n"
     "%mask : bool[batch, seq] = not(%p)\nconst %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n"
     "%e : f32[batch, seq, 2] = gather(%word, %ids) {axis=0}\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, kv_heads=1, "
     "scale=0.7}\nconst %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %c as \"c\"\n",
     PACKED " take_rows=1"},
    {"two outputs", "pack_rows",
     MODEL "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\noutput %h as \"h\"\n"
           "output %c as \"c\"\n",
     PACKED " unpack_rows=1 take_rows=1"},
    {"plain mean reads padding", "pack_rows",
     MODEL "%m : f32[batch, 2] = reduce_mean(%h) {axes=[1], keepdims=0}\noutput %m as \"m\"\n",
     "row_map=0 attention=1\nmissed:reads rows of masked tokens"},
    {"not packed: token outputs are zeroed", "pack_rows",
     MODEL "%m : f32[batch, 2] = reduce_mean(%h) {axes=[1], keepdims=0}\noutput %m as \"m\"\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=1"},
    {"an attention that was not fused: token outputs are zeroed", "pack_rows",
     "input %ids : i64[batch, seq]\ninput %attention_mask : i64[batch, seq]\n"
     "const %word : f32[5, 2] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}\n%e : f32[batch, seq, 2] = gather(%word, %ids) "
     "{axis=0}\n"
     "%m1 : i64[batch, 1, seq] = reshape(%attention_mask)\n%m : f32[batch, 1, seq] = cast(%m1) {to=1}\n"
     "%t : f32[batch, 2, seq] = transpose(%e) {perm=[0, 2, 1]}\n%s : f32[batch, seq, seq] = matmul(%e, %t)\n"
     "%sm : f32[batch, seq, seq] = mul(%s, %m)\n%p : f32[batch, seq, seq] = softmax(%sm) {axis=2}\n"
     "%h : f32[batch, seq, 2] = matmul(%p, %e)\noutput %h as \"h\"\noutput %e as \"e\"\n",
     "row_map=0 where=1"},
    {"no mask", "pack_rows",
     "input %e : f32[batch, seq, 2]\n%h : f32[batch, seq, 2] = attention(%e, %e, %e) {heads=1, head_dim=2, "
     "v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0"},
    {"hidden states as input", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=1 unpack_rows=1"},
    {"a bare attention is no token model", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %mask : i64[batch, seq]\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     "row_map=0 attention=1 where=0"},
    {"position embeddings that are summed", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %p : f32[1, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "%s : f32[batch, seq, 2] = add(%e, %p)\n"
     "%h : f32[batch, seq, 2] = attention(%s, %s, %s, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1 expand=1"},
    {"rotary: heads before tokens, a table by position", "pack_rows drop_no_ops",
     "input %e : f32[batch, seq, 4]\ninput %attention_mask : i64[batch, seq]\ninput %cos : f32[1, seq, 2]\n"
     "%c4 : f32[1, 1, seq, 2] = reshape(%cos)\n%e4 : f32[batch, seq, 2, 2] = reshape(%e)\n"
     "%t : f32[batch, 2, seq, 2] = transpose(%e4) {perm=[0, 2, 1, 3]}\n%r : f32[batch, 2, seq, 2] = mul(%t, %c4)\n"
     "%a : f32[batch, 2, seq, 1] = slice(%r) {axes=[3], starts=[1], ends=[2], steps=[1]}\n"
     "%n : f32[batch, 2, seq, 1] = neg(%a)\n%j : f32[batch, 2, seq, 2] = concat(%n, %a) {axis=3}\n"
     "%back : f32[batch, seq, 2, 2] = transpose(%j) {perm=[0, 2, 1, 3]}\n%q : f32[batch, seq, 4] = reshape(%back)\n"
     "%h : f32[batch, seq, 4] = attention(%q, %q, %e, %attention_mask) {heads=2, head_dim=2, v_head_dim=2, "
     "kv_heads=2, scale=0.7, window=3}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1 transpose=0 gather=1\ntext:%r : f32[rows, 2, 2] = mul\n"
            "text:f32[rows, 2, 1] = slice\ntext:axes=[2]\ntext:concat(%n, %a) {axis=2}\ntext:window=3\ntext:causal=1"},
    {"rotary by position: its cosines stay a table that the packed rows' positions read", "pack_rows drop_no_ops",
     "input %e : f32[batch, seq, 4]\ninput %attention_mask : i64[batch, seq]\ninput %cos : f32[seq, 1]\n"
     "input %sin : f32[seq, 1]\n%q : f32[batch, seq, 4] = rotary(%e, %cos, %sin) {heads=2}\n"
     "%h : f32[batch, seq, 4] = attention(%q, %q, %e, %attention_mask) {heads=2, head_dim=2, v_head_dim=2, "
     "kv_heads=2, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1 rotary=1 gather=0\ntext:f32[rows, 1, 4] = rotary\ntext:, %cos, %sin, %"},
    {"rotary with cosines of each token: they are packed as it is, and no positions are read", "pack_rows drop_no_ops",
     "input %e : f32[batch, seq, 4]\ninput %attention_mask : i64[batch, seq]\ninput %cos : f32[batch, seq, 1]\n"
     "input %sin : f32[batch, seq, 1]\n%q : f32[batch, seq, 4] = rotary(%e, %cos, %sin) {heads=2}\n"
     "%h : f32[batch, seq, 4] = attention(%q, %q, %e, %attention_mask) {heads=2, head_dim=2, v_head_dim=2, "
     "kv_heads=2, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=3 unpack_rows=1 rotary=1 gather=0\ntext:f32[rows, 1, 4] = rotary"},
    {"rotary of the one query that is read", "pack_rows drop_no_ops trim_unused_rows drop_dead_nodes",
     "input %e : f32[batch, seq, 4]\ninput %attention_mask : i64[batch, seq]\ninput %cos : f32[seq, 1]\n"
     "input %sin : f32[seq, 1]\nconst %w : f32[4, 4] = {#16}\n%l : f32[batch, seq, 4] = linear(%e, %w)\n"
     "%q : f32[batch, seq, 4] = rotary(%l, %cos, %sin) {heads=2}\n"
     "%k : f32[batch, seq, 4] = rotary(%e, %cos, %sin) {heads=2}\n"
     "%h : f32[batch, seq, 4] = attention(%q, %k, %e, %attention_mask) {heads=2, head_dim=2, v_head_dim=2, "
     "kv_heads=2, scale=0.7}\nconst %zero : i64[] = {0}\n%c : f32[batch, 4] = gather(%h, %zero) {axis=1}\n"
     "output %c as \"c\"\n",
     PACKED " rotary=2\ntext:f32[rows, 1, 4] = rotary\ntext:f32[batch, 1, 4] = rotary\ntext:f32[batch, 4] = linear"},
    {"tokens last: a convolution of one position is a layer of rows", "pack_rows drop_no_ops",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "const %w : f32[2, 1, 1] = {1, 2}\nconst %b : f32[2] = {1, 2}\n"
     "%t : f32[batch, 2, seq] = transpose(%e) {perm=[0, 2, 1]}\n"
     "%c : f32[batch, 2, seq] = conv(%t, %w, %b) {group=2, kernel_shape=[1], pads=[0, 0], strides=[1]}\n"
     "%q : f32[batch, seq, 2] = transpose(%c) {perm=[0, 2, 1]}\n"
     "%h : f32[batch, seq, 2] = attention(%q, %q, %e, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " conv=1 unpack_rows=1\ntext:f32[1, 2, rows] = conv"},
    {"an operator that keeps tokens apart, but has no packed form: padded between unpack_rows and attention",
     "pack_rows",
     MODEL "const %table : f32[1, 2, 4] = {1, 2, 3, 4, 5, 6, 7, 8}\n%range : i64[seq] = range() {start=0, delta=1}\n"
           "%i : i64[1, 1, seq] = reshape(%range)\n%index : i64[batch, seq, seq] = expand(%i)\n"
           "%m : f32[batch, seq, 4] = matmul(%h, %table)\n"
           "%rel : f32[batch, seq, seq] = gather_elements(%m, %index) {axis=2}\n"
           "%r4 : f32[batch, 1, seq, seq] = reshape(%rel)\n"
           "%h2 : f32[batch, seq, 2] = attention(%h, %h, %h, %mask, %r4) {heads=1, head_dim=2, v_head_dim=2, "
           "kv_heads=1, scale=0.7, masked_row=1}\noutput %h2 as \"h\"\n",
     "attention_rows=2 attention=0 unpack_rows=2 gather_elements=1 matmul=1\ntext:{mode=1}"},
    {"a token at an index of each sequence", "pack_rows",
     MODEL "%place : i64[batch] = arg_max(%ids) {axis=1, keepdims=0, select_last=0}\n"
           "%b0 : i64[batch] = range() {start=0, delta=1}\n%len : i64[1] = dims_tensor() {values=<seq>}\n"
           "%base : i64[batch] = mul(%b0, %len)\n%at : i64[batch] = add(%place, %base)\n"
           "%flat : f32[batch*seq, 2] = reshape(%h)\n%c : f32[batch, 2] = gather(%flat, %at) {axis=0}\n"
           "output %c as \"c\"\n",
     PACKED " take_rows=1 gather=0 unpack_rows=0\ntext:row_map(%mask, %place)\ntext:%row_map, %place)"},
    {"the same, by pairs", "pack_rows",
     MODEL "%n : i64[batch] = reduce_sum(%mask) {axes=[1], keepdims=0}\nconst %one : i64[] = {1}\n"
           "%place : i64[batch] = sub(%n, %one)\n%b0 : i64[batch] = range() {start=0, delta=1}\n"
           "%b1 : i64[batch, 1] = reshape(%b0)\n%p1 : i64[batch, 1] = reshape(%place)\n"
           "%at : i64[batch, 2] = concat(%b1, %p1) {axis=1}\n%c : f32[batch, 2] = gather_nd(%h, %at) {batch_dims=0}\n"
           "output %c as \"c\"\n",
     PACKED " take_rows=1 gather_nd=0 unpack_rows=0"},
    {"an index that other sequences decide is no token", "pack_rows",
     MODEL "%place : i64[batch] = arg_max(%ids) {axis=1, keepdims=0, select_last=0}\n"
           "%flat : f32[batch*seq, 2] = reshape(%h)\n%c : f32[batch, 2] = gather(%flat, %place) {axis=0}\n"
           "output %c as \"c\"\n",
     "row_map=0 attention=1 take_rows=0\nmissed:gather reads rows of masked tokens"},
    {"the last token", "pack_rows",
     MODEL "%s : f32[batch, 1, 2] = slice(%h) {axes=[1], starts=<seq-1>, ends=<seq>, steps=[1]}\n"
           "%c : f32[batch, 2] = reshape(%s)\noutput %c as \"c\"\n",
     PACKED " take_rows=1 slice=0\ntext:values=[-1]\ntext:start=-1"},
    {"a token at an index that is repeated along the columns", "pack_rows",
     MODEL "%place : i64[batch] = arg_max(%ids) {axis=1, keepdims=0, select_last=0}\n"
           "%p3 : i64[batch, 1, 1] = reshape(%place)\n%pe : i64[batch, 1, 2] = expand(%p3)\n"
           "%s : f32[batch, 1, 2] = gather_elements(%h, %pe) {axis=1}\n%c : f32[batch, 2] = reshape(%s)\n"
           "output %c as \"c\"\n",
     PACKED " take_rows=1 gather_elements=0 unpack_rows=0"},
    {"a sum by product with the mask", "pack_rows",
     MODEL "%m3 : i64[batch, 1, seq] = reshape(%mask)\n%mf : f32[batch, 1, seq] = cast(%m3) {to=1}\n"
           "%y : f32[batch, 1, 2] = matmul(%mf, %h)\noutput %y as \"y\"\n",
     PACKED " unpack_rows=1 matmul=1"},
    {"a product with something else over the tokens", "pack_rows",
     MODEL "input %w : f32[batch, 1, seq]\n%y : f32[batch, 1, 2] = matmul(%w, %h)\noutput %y as \"y\"\n",
     "row_map=0 attention=1\nmissed:matmul reads rows of masked tokens"},
    {"the largest over real tokens", "pack_rows",
     MODEL "%m1 : i64[batch, seq, 1] = reshape(%mask)\n%mb : bool[batch, seq, 1] = cast(%m1) {to=9}\n"
           "const %low : f32[] = {-1e9}\n%f : f32[batch, seq, 2] = where(%mb, %h, %low)\n"
           "%y : f32[batch, 2] = reduce_max(%f) {axes=[1], keepdims=0}\noutput %y as \"y\"\n",
     PACKED " unpack_rows=1 where=1 reduce_max=1\ntext:%f : f32[batch, seq, 2] = where"},
    {"the largest over all tokens", "pack_rows",
     MODEL "%y : f32[batch, 2] = reduce_max(%h) {axes=[1], keepdims=0}\noutput %y as \"y\"\n",
     "row_map=0 attention=1\nmissed:reduce_max reads rows of masked tokens"},
    {"neighbours are mixed before the first attention: it starts there", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "const %w : f32[2, 2, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}\n%s : f32[batch, seq, 2] = relu(%e)\n"
     "%t : f32[batch, 2, seq] = transpose(%s) {perm=[0, 2, 1]}\n"
     "%c : f32[batch, 2, seq] = conv(%t, %w) {group=1, kernel_shape=[3], pads=[1, 1], strides=[1]}\n"
     "%q : f32[batch, seq, 2] = transpose(%c) {perm=[0, 2, 1]}\n"
     "%h : f32[batch, seq, 2] = attention(%q, %q, %s, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " conv=1 pack_rows=2 unpack_rows=1\ntext:f32[batch, 2, seq] = conv"},
    {"neighbours are mixed between two attentions: the second is packed", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "const %w : f32[2, 2, 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}\n"
     "%h : f32[batch, seq, 2] = attention(%e, %e, %e, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\n%t : f32[batch, 2, seq] = transpose(%h) {perm=[0, 2, 1]}\n"
     "%c : f32[batch, 2, seq] = conv(%t, %w) {group=1, kernel_shape=[3], pads=[1, 1], strides=[1]}\n"
     "%q : f32[batch, seq, 2] = transpose(%c) {perm=[0, 2, 1]}\n"
     "%y : f32[batch, seq, 2] = attention(%q, %q, %q, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %y as \"y\"\noutput %h as \"h\"\n",
     "row_map=1 attention_rows=1 attention=1 conv=1 where=1 unpack_rows=1\nmissed:those beside a token"},
    {"one range for all tokens", "pack_rows",
     MODEL "%q : u8[batch, seq, 2], %s : f32[], %z : u8[] = dynamic_quantize_linear(%h)\n"
           "%f : f32[batch, seq, 2] = dequantize_linear(%q, %s, %z)\noutput %f as \"f\"\n",
     "row_map=0 attention=1\nmissed:one range is that of all tokens"},
    {"mask on the embeddings", "pack_rows",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n%m1 : i64[batch, seq, 1] = "
     "reshape(%attention_mask)\n"
     "%mf : f32[batch, seq, 1] = cast(%m1) {to=1}\n%s : f32[batch, seq, 2] = mul(%e, %mf)\n"
     "%h : f32[batch, seq, 2] = attention(%s, %s, %s, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, scale=0.7}\noutput %h as \"h\"\n",
     PACKED " pack_rows=2 unpack_rows=1"},
};

/* trim_unused_rows, behind pack_rows */
#define FIRST "const %zero : i64[] = {0}\n%c : f32[batch, 2] = gather(%h, %zero) {axis=1}\n"
static const struct pass_case trim_cases[] = {
    {"one token is read", "pack_rows trim_unused_rows drop_dead_nodes", MODEL FIRST "output %c as \"c\"\n",
     "take_rows=2 attention_rows=1 linear=2\ntext:%att : f32[batch, 2] = attention_rows\ntext:start=0\n"
     "text:%o : f32[batch, 2] = linear\ntext:%h : f32[batch, 2] = skip_layer_norm\ntrimmed:4+4"},
    {"the last token is read", "pack_rows trim_unused_rows drop_dead_nodes",
     MODEL "%s : f32[batch, 1, 2] = slice(%h) {axes=[1], starts=<seq-1>, ends=<seq>, steps=[1]}\noutput %s as \"s\"\n",
     "take_rows=2 attention_rows=1 fill=1\ntext:%att : f32[batch, 2] = attention_rows\ntext:%h : f32[batch, 2]\n"
     "trimmed:4+4"},
    {"a token at an index of each sequence is read", "pack_rows trim_unused_rows drop_dead_nodes",
     MODEL "%place : i64[batch] = arg_max(%ids) {axis=1, keepdims=0, select_last=0}\n"
           "%b0 : i64[batch] = range() {start=0, delta=1}\n%len : i64[1] = dims_tensor() {values=<seq>}\n"
           "%base : i64[batch] = mul(%b0, %len)\n%at : i64[batch] = add(%place, %base)\n"
           "%flat : f32[batch*seq, 2] = reshape(%h)\n%c : f32[batch, 2] = gather(%flat, %at) {axis=0}\n"
           "output %c as \"c\"\n",
     "take_rows=2 attention_rows=1\ntext:%row_map, _, %place)\ntext:%h : f32[batch, 2]"},
    {"all tokens are read too", "pack_rows trim_unused_rows drop_dead_nodes",
     MODEL FIRST "output %c as \"c\"\noutput %h as \"h\"\n",
     "take_rows=1 unpack_rows=1\ntext:%att : f32[rows, 2]\ntrimmed:0+0"},
    {"the product of Q leaves that of K and V", "pack_rows trim_unused_rows drop_dead_nodes",
     "input %e : f32[batch, seq, 2]\ninput %attention_mask : i64[batch, seq]\n"
     "const %q : f32[2, 2] = {1, 2, 3, 4}\nconst %k : f32[2, 2] = {5, 6, 7, 8}\nconst %v : f32[2, 2] = {9, 1, 2, 3}\n"
     "const %b : f32[6] = {1, 2, 3, 4, 5, 6}\n%w : f32[2, 6] = concat(%q, %k, %v) {axis=1}\n"
     "%qkv : f32[batch, seq, 6] = linear(%e, %w, %b)\n"
     "%h : f32[batch, seq, 2] = attention(%qkv, %qkv, %qkv, %attention_mask) {heads=1, head_dim=2, v_head_dim=2, "
     "kv_heads=1, q_offset=0, k_offset=2, v_offset=4, scale=0.7}\n" FIRST "output %c as \"c\"\n",
     "linear=2 concat=1 take_rows=1\ntext:f32[2, 4] = concat(%k, %v)\ntext:k_offset=0, v_offset=2\ntrimmed:4+4"},
};

int main(void) {
    return pass_cases_main("pack_rows", cases, sizeof cases / sizeof *cases) +
           pass_cases_main("trim_unused_rows", trim_cases, sizeof trim_cases / sizeof *trim_cases);
}
