"""The prefill side: subscribes, asks for regions and writes only what the watermark proves to be free."""
