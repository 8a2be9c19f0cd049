BlogitsJÉ
ü=