"""What the search begins with: shapes of inputs, and words to vary them by."""

import msgspec

from tests.amplification.shapes import Shape, shape

# Words have a bar between them.
JSON_WORDS = (
    b'[|]|{|}|,|:|"|\\|0|1|-1|1e9|0.1|null|true|"a"|"a":1|[]|{}|{"a":1}|\\u0041|\\ud800|\\n| |[['
    b'|\xc3\xa9|"role":"user"|"content":"a"|"role":"system"|"type":"text"|"usage":{|"abort"|"n":1'
).split(b"|")
HEAD_WORDS = (
    b"a: b\r\n|\r\n|:|,|a| |;|\t|close,|connection: a,|cookie: a=b; |x-request-id: a\r\n|\xff|/|?"
    b"|traceparent: 00-|authorization: Bearer a|accept: a;q=0.1,|%41|&"
).split(b"|")
EVENT_WORDS = (
    b'data:|data: {"choices":[{"delta":{"content":"a"}}]}|\n\n|\n|\r\n\r\n|\r\r|event: a\n|:|x'
    b'|"usage":{|"abort"|"error":|[DONE]|{"type":"a"}|event: content_block_delta\n|{}|\x0b|\x1c'
    b'|event: response.output_text.delta\n|"choices":[]|event: message_delta\n|"role":""'
).split(b"|")
PAGE_WORDS = (
    b'vllm:cache_config_info{|vllm:num_requests_running|block_size="|"|}|1|1e308|,|=|a|\\"|\xc3\xa9'
    b"|\n| |\t| 1\n"
).split(b"|")
CHUNK_WORDS = (
    b'1\r\nx\r\n|4\r\nxxxx\r\n|;a|"|\\|0\r\n|\r\n|1|f|a: b\r\n| |x|10\r\nxxxxxxxxxxxxxxxx\r\n'
).split(b"|")
TEXT_WORDS = b"a| |\n|\t|\xe9|\xff|<im_start>|1|{{ a }}|'|\x00|\xa0|AB|_|/".split(b"|")

MESSAGE = b'{"role":"user","content":"a"}'
CHATS = (
    shape(b'{"model":"demo","messages":[{"role":"user","content":"', b"a ", b'"}]}'),
    shape(b'{"model":"demo","messages":[' + MESSAGE, b"," + MESSAGE, b"]}"),
    shape(b'{"messages":[' + MESSAGE, b",[]", b"]}"),
    shape(b'{"messages":[], "model":"demo"', b',"a":0', b"}"),
    shape(b'{"messages":[],"model":', b"["),
    shape(b'{"messages":[],"max_tokens":', b"1", b"}"),
    shape(b'{"messages":[],"max_tokens":0.', b"1", b"}"),
    shape(b'{"messages":[{"role":"user","content":[{}', b',{"type":"text","text":"a"}', b"]}]}"),
    shape(b'{"messages":[' + MESSAGE + b'],"tools":[{}', b",{}", b"]}"),
    shape(b"", b" ", b"{}"),
)
INPUTS = tuple(
    Shape(one.head.replace("messages", name), one.unit, one.tail)
    for one in CHATS
    for name in ("input", "prompt")
)
IDS = (shape(b'{"model":"demo","tokens":[1', b",1", b"]}"),)
TEXTS = tuple(shape(b"", unit) for unit in b"a| |\n|a |\xe9|<im_end>|1|{{|{%|.|ab|'s".split(b"|"))
HEADS = tuple(
    shape(b"GET /" + before, unit, after + b"\r\n\r\n")
    for before, unit, after in (
        (b"health HTTP/1.1\r\nconnection: close\r\nhost: x", b"\r\na: b", b""),
        (b"health HTTP/1.1\r\nhost: x\r\nconnection: close", b",a", b""),
        (b"", b"a", b" HTTP/1.1\r\nhost: x\r\nconnection: close"),
        (b"?", b"a=b&", b" HTTP/1.1\r\nhost: x\r\nconnection: close"),
        (b"health HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntraceparent: ", b"0", b""),
        (b"health HTTP/1.1\r\nhost: x\r\n", b"a", b""),
    )
)
ANSWER_HEADS = (
    shape(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n", b"a: b\r\n", b"\r\n"),
    shape(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: a", b",a", b"\r\n\r\n"),
    shape(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    shape(b"HTTP/1.1 200 ", b"a", b"\r\ncontent-length: 0\r\n\r\n"),
)
CHUNKS = (
    shape(b"", b"18\r\n" + b"x" * 24 + b"\r\n", b"0\r\n\r\n"),
    shape(b"", b"1\r\nx\r\n", b"0\r\n\r\n"),
    shape(b"4", b';a="\\"', b"\r\nxxxx\r\n0\r\n\r\n"),
    shape(b"", b"4 ;" + b"a" * 500 + b"\r\nxxxx\r\n", b"0\r\n\r\n"),
    shape(b"0\r\n", b"a: b\r\n", b"\r\n"),
)
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
EVENTS = (
    shape(b"", b"data:\n\n"),
    shape(b"", b"data: {}\n\n"),
    shape(b"", b"\n"),
    shape(b"", b"\r"),
    shape(TOKEN, b'data: {"abort"}\n\n'),
    shape(b"", b'data: {"choices":[{"finish_reason":"abort"}]}\n\n'),
    shape(b"", b"event: a\ndata: {}\n\n"),
    shape(b"", b'data: {"type":"message_delta","usage":{}}\n\n'),
    shape(b"data: ", b"[", b"\n\n"),
    shape(b"", b"data:x\n", b"\n"),
    shape(TOKEN, b'data:"abort"finish_reason"usage":{\n', b"\n"),
    shape(b'data: {"abort":', b"[],", b"\n\n"),
)
ANSWERS = (
    shape(b'{"choices":[{}', b",{}", b"]}"),
    shape(b'{"id":"', b"a", b'"}'),
    shape(b'{"choices":[{"finish_reason":"abort","message":{"a":[', b"[],", b"0]}}]}"),
    shape(b"", b'{"response":'),
    shape(b'{"usage":{"prompt_tokens":', b"1", b"}}"),
)
_EVENTS = (
    ["AllBlocksCleared"],
    ["BlockRemoved", [1]],
    ["BlockStored", [1], None, [1], 1],
    {"type": "BlockStored", "block_hashes": [], "token_ids": [], "block_size": 1},
)
KV_WORDS = (
    *b"\x90|\x91|\x80|\xc0|\x01|\xcd\x01\x00|\xa1a|\xc4\x01a|\xdd<#>|\xdd\x00\x01\x00\x00".split(
        b"|"
    ),
    *map(msgspec.msgpack.encode, _EVENTS),
)
BATCH = b"\x92\xcb" + bytes(8)
KV = (
    *(shape(BATCH + b"\xdd<#>", unit) for unit in KV_WORDS),
    shape(BATCH + b"\x91\x92\xacBlockRemoved\xdd<#>", b"\x01"),
    shape(BATCH + b"\x91\x95\xabBlockStored\x91\x01\xc0\xdd<#>", b"\x01", b"\x01"),
    shape(BATCH + b"\x91\x99\xabBlockStored\x91\x01\xc0\x91\x01\x01\xc0\xc0\xc0\xdd<#>", b"\x90"),
)
PAGES = (
    shape(b"vllm:cache_config_info{", b"a", b"} 1\n"),
    shape(b"", b"vllm:num_requests_running 1\n"),
    shape(b"", b'vllm:cache_config_info{block_size="1"} 1\n'),
    shape(b"vllm:cache_config_info{", b"} ", b"\n"),
    shape(b"", b"\n"),
)
LISTS = (
    shape(b'{"data":[{"id":"a"}', b',{"id":"a"}', b"]}"),
    shape(b'{"data":[', b"[],", b"0]}"),
    shape(b'{"data":[{"id":"', b"a", b'"}]}'),
)
_LOCAL = b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
ADMIN = (
    shape(b"GET /metrics" + _LOCAL + b"a: ", b"a", b"\r\n\r\n"),
    shape(b"GET /status.json" + _LOCAL, b"a: b\r\n", b"\r\n"),
    shape(b"GET /metrics" + _LOCAL + b"accept: ", b"a,", b"\r\n\r\n"),
    shape(b"GET /" + _LOCAL + b"cookie: ", b"a=b; ", b"\r\n\r\n"),
    shape(b"GET /stalls?", b"a=b&", _LOCAL + b"\r\n"),
)
