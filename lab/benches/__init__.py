"""``lab bench``: the product, the raw material and its peers, measured side by side in one run."""
