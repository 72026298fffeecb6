from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_STANDARD: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    REFUSAL_CODE_INVALID: _ClassVar[RefusalCode]
    REFUSAL_CODE_CONTEXT_TOO_LONG: _ClassVar[RefusalCode]
    REFUSAL_CODE_KV_LIMIT: _ClassVar[RefusalCode]
    REFUSAL_CODE_QUEUE_FULL: _ClassVar[RefusalCode]
    REFUSAL_CODE_NO_POLICY: _ClassVar[RefusalCode]
    REFUSAL_CODE_DRAINING: _ClassVar[RefusalCode]
    REFUSAL_CODE_UNAVAILABLE: _ClassVar[RefusalCode]

class SessionAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_ACTION_UNSPECIFIED: _ClassVar[SessionAction]
    SESSION_ACTION_PIN: _ClassVar[SessionAction]
    SESSION_ACTION_UNPIN: _ClassVar[SessionAction]
    SESSION_ACTION_PREFETCH: _ClassVar[SessionAction]
    SESSION_ACTION_ERASE: _ClassVar[SessionAction]
PRIORITY_STANDARD: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason
REFUSAL_CODE_UNSPECIFIED: RefusalCode
REFUSAL_CODE_INVALID: RefusalCode
REFUSAL_CODE_CONTEXT_TOO_LONG: RefusalCode
REFUSAL_CODE_KV_LIMIT: RefusalCode
REFUSAL_CODE_QUEUE_FULL: RefusalCode
REFUSAL_CODE_NO_POLICY: RefusalCode
REFUSAL_CODE_DRAINING: RefusalCode
REFUSAL_CODE_UNAVAILABLE: RefusalCode
SESSION_ACTION_UNSPECIFIED: SessionAction
SESSION_ACTION_PIN: SessionAction
SESSION_ACTION_UNPIN: SessionAction
SESSION_ACTION_PREFETCH: SessionAction
SESSION_ACTION_ERASE: SessionAction

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelCard(_message.Message):
    __slots__ = ("worker_id", "model", "digest", "tokenizer_json", "chat_template", "special_tokens", "eos_token_ids", "vocab_size", "max_context_tokens", "block_size", "block_bytes", "num_blocks", "dtype", "device", "kernel_backend", "engine_version", "embedding_size")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    digest: str
    tokenizer_json: bytes
    chat_template: str
    special_tokens: _containers.ScalarMap[str, str]
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    vocab_size: int
    max_context_tokens: int
    block_size: int
    block_bytes: int
    num_blocks: int
    dtype: str
    device: str
    kernel_backend: str
    engine_version: str
    embedding_size: int
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., digest: _Optional[str] = ..., tokenizer_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., special_tokens: _Optional[_Mapping[str, str]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., vocab_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., block_bytes: _Optional[int] = ..., num_blocks: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., kernel_backend: _Optional[str] = ..., engine_version: _Optional[str] = ..., embedding_size: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("submit", "cancel", "prefetch")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    prefetch: Prefetch
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ...) -> None: ...

class Prefetch(_message.Message):
    __slots__ = ("tenant", "session")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    session: str
    def __init__(self, tenant: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("stream", "request_id", "tenant", "project", "key", "namespace", "session", "priority", "deadline", "token_ids", "sampling", "policy_version", "n", "best_of", "beam_search", "session_seconds", "embed")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    stream: int
    request_id: str
    tenant: str
    project: str
    key: str
    namespace: bytes
    session: str
    priority: Priority
    deadline: float
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    policy_version: int
    n: int
    best_of: int
    beam_search: BeamSearch
    session_seconds: float
    embed: bool
    def __init__(self, stream: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., project: _Optional[str] = ..., key: _Optional[str] = ..., namespace: _Optional[bytes] = ..., session: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., deadline: _Optional[float] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., policy_version: _Optional[int] = ..., n: _Optional[int] = ..., best_of: _Optional[int] = ..., beam_search: _Optional[_Union[BeamSearch, _Mapping]] = ..., session_seconds: _Optional[float] = ..., embed: bool = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids", "ignore_eos", "min_p", "min_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "prompt_logprobs", "grammar", "shown_token_ids")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SHOWN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_p: float
    min_tokens: int
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    prompt_logprobs: int
    grammar: Grammar
    shown_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., min_p: _Optional[float] = ..., min_tokens: _Optional[int] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., shown_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Grammar.Kind]
        KIND_JSON_SCHEMA: _ClassVar[Grammar.Kind]
        KIND_REGEX: _ClassVar[Grammar.Kind]
        KIND_LARK: _ClassVar[Grammar.Kind]
    KIND_UNSPECIFIED: Grammar.Kind
    KIND_JSON_SCHEMA: Grammar.Kind
    KIND_REGEX: Grammar.Kind
    KIND_LARK: Grammar.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    text: str
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class BeamSearch(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: bool
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: bool = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class StepEvents(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("stream", "index", "admitted", "delta", "finished", "refused", "output_finished", "prompt_scores")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORES_FIELD_NUMBER: _ClassVar[int]
    stream: int
    index: int
    admitted: Admitted
    delta: Delta
    finished: Finished
    refused: Refused
    output_finished: OutputFinished
    prompt_scores: PromptScores
    def __init__(self, stream: _Optional[int] = ..., index: _Optional[int] = ..., admitted: _Optional[_Union[Admitted, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., output_finished: _Optional[_Union[OutputFinished, _Mapping]] = ..., prompt_scores: _Optional[_Union[PromptScores, _Mapping]] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("max_tokens",)
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    def __init__(self, max_tokens: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("token_ids", "text", "scores")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    scores: _containers.RepeatedCompositeFieldContainer[TokenScore]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., scores: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ...) -> None: ...

class TokenScore(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[TokenScore]
    def __init__(self, scores: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "text", "usage", "detail", "embedding", "field")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    text: str
    usage: Usage
    detail: str
    embedding: _containers.RepeatedScalarFieldContainer[float]
    field: str
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., text: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., detail: _Optional[str] = ..., embedding: _Optional[_Iterable[float]] = ..., field: _Optional[str] = ...) -> None: ...

class OutputFinished(_message.Message):
    __slots__ = ("reason", "text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    text: str
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "message", "field")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    code: RefusalCode
    message: str
    field: str
    def __init__(self, code: _Optional[_Union[RefusalCode, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class ControlCommand(_message.Message):
    __slots__ = ("policy", "usage_ack", "drain")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    USAGE_ACK_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyPush
    usage_ack: UsageAck
    drain: Drain
    def __init__(self, policy: _Optional[_Union[PolicyPush, _Mapping]] = ..., usage_ack: _Optional[_Union[UsageAck, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class PolicyPush(_message.Message):
    __slots__ = ("version", "snapshot", "tenants", "removed_tenants", "epoch", "share_groups", "removed_share_groups")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TENANTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_SHARE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    version: int
    snapshot: bool
    tenants: _containers.RepeatedCompositeFieldContainer[TenantPolicy]
    removed_tenants: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    share_groups: _containers.RepeatedCompositeFieldContainer[ShareGroup]
    removed_share_groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., snapshot: bool = ..., tenants: _Optional[_Iterable[_Union[TenantPolicy, _Mapping]]] = ..., removed_tenants: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., share_groups: _Optional[_Iterable[_Union[ShareGroup, _Mapping]]] = ..., removed_share_groups: _Optional[_Iterable[str]] = ...) -> None: ...

class TenantPolicy(_message.Message):
    __slots__ = ("tenant", "weight", "kv_soft_bytes", "kv_hard_bytes", "max_running", "max_queued", "max_context_tokens", "max_output_tokens", "priority", "share_groups", "host_bytes", "disk_bytes", "shadow", "fleet_hard_bytes", "fleet_max_running", "disk_secret")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    KV_SOFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_HARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SHARE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    FLEET_HARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLEET_MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    DISK_SECRET_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    weight: float
    kv_soft_bytes: int
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context_tokens: int
    max_output_tokens: int
    priority: Priority
    share_groups: _containers.RepeatedScalarFieldContainer[str]
    host_bytes: int
    disk_bytes: int
    shadow: ShadowLimits
    fleet_hard_bytes: int
    fleet_max_running: int
    disk_secret: bytes
    def __init__(self, tenant: _Optional[str] = ..., weight: _Optional[float] = ..., kv_soft_bytes: _Optional[int] = ..., kv_hard_bytes: _Optional[int] = ..., max_running: _Optional[int] = ..., max_queued: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., share_groups: _Optional[_Iterable[str]] = ..., host_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., shadow: _Optional[_Union[ShadowLimits, _Mapping]] = ..., fleet_hard_bytes: _Optional[int] = ..., fleet_max_running: _Optional[int] = ..., disk_secret: _Optional[bytes] = ...) -> None: ...

class ShadowLimits(_message.Message):
    __slots__ = ("kv_hard_bytes", "max_running", "max_queued", "max_context_tokens", "max_output_tokens")
    KV_HARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    kv_hard_bytes: int
    max_running: int
    max_queued: int
    max_context_tokens: int
    max_output_tokens: int
    def __init__(self, kv_hard_bytes: _Optional[int] = ..., max_running: _Optional[int] = ..., max_queued: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ...) -> None: ...

class ShareGroup(_message.Message):
    __slots__ = ("name", "namespace", "kv_soft_bytes", "kv_hard_bytes", "prefixes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KV_SOFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_HARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: bytes
    kv_soft_bytes: int
    kv_hard_bytes: int
    prefixes: _containers.RepeatedCompositeFieldContainer[SharedPrefix]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[bytes] = ..., kv_soft_bytes: _Optional[int] = ..., kv_hard_bytes: _Optional[int] = ..., prefixes: _Optional[_Iterable[_Union[SharedPrefix, _Mapping]]] = ...) -> None: ...

class SharedPrefix(_message.Message):
    __slots__ = ("id", "token_ids")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class UsageAck(_message.Message):
    __slots__ = ("up_to",)
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    up_to: int
    def __init__(self, up_to: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: bool = ...) -> None: ...

class ControlEvent(_message.Message):
    __slots__ = ("applied", "stats", "usage", "hello", "settled")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    applied: Applied
    stats: Stats
    usage: UsageBatch
    hello: Hello
    settled: Settled
    def __init__(self, applied: _Optional[_Union[Applied, _Mapping]] = ..., stats: _Optional[_Union[Stats, _Mapping]] = ..., usage: _Optional[_Union[UsageBatch, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "applied_version", "applied_epoch", "kv_bytes", "block_bytes", "grants", "share_groups")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    APPLIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    SHARE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    applied_version: int
    applied_epoch: int
    kv_bytes: int
    block_bytes: int
    grants: _containers.RepeatedCompositeFieldContainer[TenantPolicy]
    share_groups: _containers.RepeatedCompositeFieldContainer[ShareGroup]
    def __init__(self, worker_id: _Optional[str] = ..., applied_version: _Optional[int] = ..., applied_epoch: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., block_bytes: _Optional[int] = ..., grants: _Optional[_Iterable[_Union[TenantPolicy, _Mapping]]] = ..., share_groups: _Optional[_Iterable[_Union[ShareGroup, _Mapping]]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("version", "epoch", "at", "over_bytes", "settle_seconds")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OVER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SETTLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    at: float
    over_bytes: int
    settle_seconds: float
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[float] = ..., over_bytes: _Optional[int] = ..., settle_seconds: _Optional[float] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("version", "epoch", "at")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    at: float
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[float] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("at", "step", "blocks_total", "blocks_free", "blocks_open", "blocks_sealed", "block_bytes", "running", "queued", "prompt_tokens_per_second", "output_tokens_per_second", "tenants", "applied_version", "core_ready", "num_preemptions", "blocks_cached", "share_groups", "core_started_at", "pressure", "host_bytes_total", "host_bytes_used", "swapped_out_bytes", "swapped_in_bytes", "interference", "disk_bytes_total", "disk_bytes_used", "disk_problem", "disk_errors", "traffic", "tier_hits", "tier_stall_seconds", "prefetched_blocks", "prefetched_used_blocks", "num_sessions", "prefix_asked_tokens", "prefix_found_tokens", "swap_chosen", "recompute_chosen")
    AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_OPEN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_SEALED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    CORE_READY_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    SHARE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CORE_STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    DISK_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DISK_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    TIER_HITS_FIELD_NUMBER: _ClassVar[int]
    TIER_STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ASKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FOUND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAP_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    at: float
    step: int
    blocks_total: int
    blocks_free: int
    blocks_open: int
    blocks_sealed: int
    block_bytes: int
    running: int
    queued: int
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    applied_version: int
    core_ready: bool
    num_preemptions: int
    blocks_cached: int
    share_groups: _containers.RepeatedCompositeFieldContainer[ShareGroupStats]
    core_started_at: float
    pressure: Pressure
    host_bytes_total: int
    host_bytes_used: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    interference: _containers.RepeatedCompositeFieldContainer[Interference]
    disk_bytes_total: int
    disk_bytes_used: int
    disk_problem: str
    disk_errors: int
    traffic: _containers.RepeatedCompositeFieldContainer[TierTraffic]
    tier_hits: _containers.RepeatedCompositeFieldContainer[TierHits]
    tier_stall_seconds: float
    prefetched_blocks: int
    prefetched_used_blocks: int
    num_sessions: int
    prefix_asked_tokens: int
    prefix_found_tokens: int
    swap_chosen: int
    recompute_chosen: int
    def __init__(self, at: _Optional[float] = ..., step: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_open: _Optional[int] = ..., blocks_sealed: _Optional[int] = ..., block_bytes: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., prompt_tokens_per_second: _Optional[float] = ..., output_tokens_per_second: _Optional[float] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ..., applied_version: _Optional[int] = ..., core_ready: bool = ..., num_preemptions: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., share_groups: _Optional[_Iterable[_Union[ShareGroupStats, _Mapping]]] = ..., core_started_at: _Optional[float] = ..., pressure: _Optional[_Union[Pressure, _Mapping]] = ..., host_bytes_total: _Optional[int] = ..., host_bytes_used: _Optional[int] = ..., swapped_out_bytes: _Optional[int] = ..., swapped_in_bytes: _Optional[int] = ..., interference: _Optional[_Iterable[_Union[Interference, _Mapping]]] = ..., disk_bytes_total: _Optional[int] = ..., disk_bytes_used: _Optional[int] = ..., disk_problem: _Optional[str] = ..., disk_errors: _Optional[int] = ..., traffic: _Optional[_Iterable[_Union[TierTraffic, _Mapping]]] = ..., tier_hits: _Optional[_Iterable[_Union[TierHits, _Mapping]]] = ..., tier_stall_seconds: _Optional[float] = ..., prefetched_blocks: _Optional[int] = ..., prefetched_used_blocks: _Optional[int] = ..., num_sessions: _Optional[int] = ..., prefix_asked_tokens: _Optional[int] = ..., prefix_found_tokens: _Optional[int] = ..., swap_chosen: _Optional[int] = ..., recompute_chosen: _Optional[int] = ...) -> None: ...

class TierTraffic(_message.Message):
    __slots__ = ("source", "target", "blocks", "bytes", "seconds", "latencies")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    blocks: int
    bytes: int
    seconds: float
    latencies: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., latencies: _Optional[_Iterable[int]] = ...) -> None: ...

class TierHits(_message.Message):
    __slots__ = ("tier", "tokens")
    TIER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tier: str
    tokens: int
    def __init__(self, tier: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class Pressure(_message.Message):
    __slots__ = ("score", "use", "borrowed", "wait", "swap")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    SWAP_FIELD_NUMBER: _ClassVar[int]
    score: float
    use: float
    borrowed: float
    wait: float
    swap: float
    def __init__(self, score: _Optional[float] = ..., use: _Optional[float] = ..., borrowed: _Optional[float] = ..., wait: _Optional[float] = ..., swap: _Optional[float] = ...) -> None: ...

class Interference(_message.Message):
    __slots__ = ("by", "of", "cached_blocks", "num_preemptions", "recomputed_tokens", "swapped_bytes")
    BY_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    by: str
    of: str
    cached_blocks: int
    num_preemptions: int
    recomputed_tokens: int
    swapped_bytes: int
    def __init__(self, by: _Optional[str] = ..., of: _Optional[str] = ..., cached_blocks: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., swapped_bytes: _Optional[int] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("tenant", "kv_bytes", "running", "queued", "output_tokens_per_second", "kv_peak_bytes", "kv_cached_bytes", "kv_borrowed_bytes", "host_bytes", "above_soft_seconds", "service", "num_preemptions", "recomputed_tokens", "oldest_wait_seconds", "shadow", "output_tokens", "weight", "disk_bytes", "num_sessions")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    KV_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BORROWED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ABOVE_SOFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    kv_bytes: int
    running: int
    queued: int
    output_tokens_per_second: float
    kv_peak_bytes: int
    kv_cached_bytes: int
    kv_borrowed_bytes: int
    host_bytes: int
    above_soft_seconds: float
    service: float
    num_preemptions: int
    recomputed_tokens: int
    oldest_wait_seconds: float
    shadow: _containers.RepeatedCompositeFieldContainer[ShadowCount]
    output_tokens: int
    weight: float
    disk_bytes: int
    num_sessions: int
    def __init__(self, tenant: _Optional[str] = ..., kv_bytes: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., output_tokens_per_second: _Optional[float] = ..., kv_peak_bytes: _Optional[int] = ..., kv_cached_bytes: _Optional[int] = ..., kv_borrowed_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., above_soft_seconds: _Optional[float] = ..., service: _Optional[float] = ..., num_preemptions: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., oldest_wait_seconds: _Optional[float] = ..., shadow: _Optional[_Iterable[_Union[ShadowCount, _Mapping]]] = ..., output_tokens: _Optional[int] = ..., weight: _Optional[float] = ..., disk_bytes: _Optional[int] = ..., num_sessions: _Optional[int] = ...) -> None: ...

class ShadowCount(_message.Message):
    __slots__ = ("limit", "refused", "delayed")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    limit: str
    refused: int
    delayed: int
    def __init__(self, limit: _Optional[str] = ..., refused: _Optional[int] = ..., delayed: _Optional[int] = ...) -> None: ...

class ShareGroupStats(_message.Message):
    __slots__ = ("name", "kv_bytes", "kv_peak_bytes", "kv_cached_bytes", "num_prefixes", "prefix_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kv_bytes: int
    kv_peak_bytes: int
    kv_cached_bytes: int
    num_prefixes: int
    prefix_tokens: int
    def __init__(self, name: _Optional[str] = ..., kv_bytes: _Optional[int] = ..., kv_peak_bytes: _Optional[int] = ..., kv_cached_bytes: _Optional[int] = ..., num_prefixes: _Optional[int] = ..., prefix_tokens: _Optional[int] = ...) -> None: ...

class UsageBatch(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[UsageRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[UsageRecord, _Mapping]]] = ...) -> None: ...

class UsageRecord(_message.Message):
    __slots__ = ("sequence", "request_id", "tenant", "project", "key", "session", "model", "worker_id", "prompt_tokens", "cached_tokens", "completion_tokens", "kv_device_byte_seconds", "queue_seconds", "ttft_seconds", "started_at", "finished_at", "finish_reason", "num_preemptions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_DEVICE_BYTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    request_id: str
    tenant: str
    project: str
    key: str
    session: str
    model: str
    worker_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    kv_device_byte_seconds: float
    queue_seconds: float
    ttft_seconds: float
    started_at: float
    finished_at: float
    finish_reason: FinishReason
    num_preemptions: int
    def __init__(self, sequence: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., project: _Optional[str] = ..., key: _Optional[str] = ..., session: _Optional[str] = ..., model: _Optional[str] = ..., worker_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., kv_device_byte_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., ttft_seconds: _Optional[float] = ..., started_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class SessionQuery(_message.Message):
    __slots__ = ("tenant", "session", "limit", "before")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    session: str
    limit: int
    before: float
    def __init__(self, tenant: _Optional[str] = ..., session: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[float] = ...) -> None: ...

class SessionPage(_message.Message):
    __slots__ = ("sessions", "num_sessions")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    num_sessions: int
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., num_sessions: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session", "num_tokens", "device_bytes", "host_bytes", "disk_bytes", "num_turns", "created_at", "last_used_at", "expires_at", "pinned", "active")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    session: str
    num_tokens: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    num_turns: int
    created_at: float
    last_used_at: float
    expires_at: float
    pinned: bool
    active: bool
    def __init__(self, session: _Optional[str] = ..., num_tokens: _Optional[int] = ..., device_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., num_turns: _Optional[int] = ..., created_at: _Optional[float] = ..., last_used_at: _Optional[float] = ..., expires_at: _Optional[float] = ..., pinned: bool = ..., active: bool = ...) -> None: ...

class SessionChange(_message.Message):
    __slots__ = ("tenant", "session", "action")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    session: str
    action: SessionAction
    def __init__(self, tenant: _Optional[str] = ..., session: _Optional[str] = ..., action: _Optional[_Union[SessionAction, str]] = ...) -> None: ...

class PreviewRequest(_message.Message):
    __slots__ = ("tenants", "seconds", "current")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantPolicy]
    seconds: float
    current: _containers.RepeatedCompositeFieldContainer[TenantPolicy]
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantPolicy, _Mapping]]] = ..., seconds: _Optional[float] = ..., current: _Optional[_Iterable[_Union[TenantPolicy, _Mapping]]] = ...) -> None: ...

class PreviewReport(_message.Message):
    __slots__ = ("seconds", "num_events", "elapsed_seconds", "tenants", "hit_rate_before", "hit_rate_after", "pressure_before", "pressure_after", "problem")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENTS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    HIT_RATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_AFTER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    num_events: int
    elapsed_seconds: float
    tenants: _containers.RepeatedCompositeFieldContainer[TenantPreview]
    hit_rate_before: float
    hit_rate_after: float
    pressure_before: float
    pressure_after: float
    problem: str
    def __init__(self, seconds: _Optional[float] = ..., num_events: _Optional[int] = ..., elapsed_seconds: _Optional[float] = ..., tenants: _Optional[_Iterable[_Union[TenantPreview, _Mapping]]] = ..., hit_rate_before: _Optional[float] = ..., hit_rate_after: _Optional[float] = ..., pressure_before: _Optional[float] = ..., pressure_after: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...

class TenantPreview(_message.Message):
    __slots__ = ("tenant", "before", "after")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    before: PreviewFigures
    after: PreviewFigures
    def __init__(self, tenant: _Optional[str] = ..., before: _Optional[_Union[PreviewFigures, _Mapping]] = ..., after: _Optional[_Union[PreviewFigures, _Mapping]] = ...) -> None: ...

class PreviewFigures(_message.Message):
    __slots__ = ("num_requests", "num_refused", "num_preemptions", "evicted_blocks", "prompt_tokens", "cached_tokens", "output_tokens", "kv_peak_bytes", "above_soft_seconds", "ttft_p50_seconds", "ttft_p99_seconds", "queue_p99_seconds")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    ABOVE_SOFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTFT_P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTFT_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_refused: int
    num_preemptions: int
    evicted_blocks: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_peak_bytes: int
    above_soft_seconds: float
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    queue_p99_seconds: float
    def __init__(self, num_requests: _Optional[int] = ..., num_refused: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., kv_peak_bytes: _Optional[int] = ..., above_soft_seconds: _Optional[float] = ..., ttft_p50_seconds: _Optional[float] = ..., ttft_p99_seconds: _Optional[float] = ..., queue_p99_seconds: _Optional[float] = ...) -> None: ...
