"""A KV connector for vLLM: name ``integrations.vllm.connector`` as ``kv_connector_module_path``."""
